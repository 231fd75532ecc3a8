# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The source's end of a stream: lists and hashes a tree, then sends the files it is asked for. It writes nothing into the tree."""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any, Dict, List, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._index import HashIndex, index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import environment
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import Progress
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    DATA,
    FILE_INDEX,
    INDEX,
    SUM,
    Channel,
    Message,
    encode_path,
    entry_row,
    folder_digest,
    folders,
    send_rows,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import (
    FILE,
    Entry,
    TreeError,
    hash_file,
    read_file,
    run_threads,
    scan,
    show,
    tree_digest,
)


def hash_known(root: bytes, entries: List[Entry], index: HashIndex, full: bool, progress: Progress) -> Dict[bytes, str]:
    """SHA-256 by path of every file: from the index where it is unchanged (unless ``full``), else by reading it."""
    hashes: Dict[bytes, str] = {}
    unknown: List[Entry] = []
    for entry in entries:
        if entry.kind == FILE:
            known = None if full else index.lookup(entry)
            if known is None:
                unknown.append(entry)
            else:
                hashes[entry.path] = known

    def work(entry: Entry) -> None:
        seen = time.time_ns()
        hashes[entry.path] = hash_file(root, entry)
        index.add(entry, hashes[entry.path], seen)
        progress.add(1, entry.size)

    run_threads(work, unknown)
    return hashes


def serve(channel: Channel, request: Message) -> None:
    """Answer one relay: ``scan`` has ``src``, ``exclude`` and ``full``; then ``folders``, ``list``, ``send`` and ``bye``."""
    src = os.fsencode(request["src"])
    root = _open(src)
    progress = Progress(channel, "hash")
    entries = scan(root, request["exclude"])
    if not entries:
        raise TreeError(f"{show(src)} is empty; name the directory of the environment as src")
    index = HashIndex(index_path(root))
    hashes = hash_known(root, entries, index, request["full"], progress)
    index.save()
    files = [entry for entry in entries if entry.kind == FILE]
    listed: List[Tuple[bytes, List[Entry]]] = []
    channel.send(
        "tree",
        digest=tree_digest(entries, hashes),
        files=len(files),
        bytes=sum(entry.size for entry in files),
        entries=len(entries),
        hashed=progress.files,
        environment=environment.describe(root, hashes),
        shared=sum(1 for entry in files if entry.nlink > 1),
    )
    while True:
        message = channel.receive("folders", "list", "send", "bye")
        if message["op"] == "folders":
            listed = list(folders(entries).items())
            send_rows(
                channel, "folders", [[encode_path(path), folder_digest(inside, hashes)] for path, inside in listed]
            )
        elif message["op"] == "list":
            rows = [entry_row(entry, hashes) for number in message["want"] for entry in listed[number][1]]
            send_rows(channel, "entries", rows)
        elif message["op"] == "send":
            _send(channel, root, entries, hashes, message["want"])
        else:
            return


def _open(src: bytes) -> bytes:
    """The real path of a readable source directory; raises TreeError naming what is wrong with it."""
    if not os.path.lexists(src):
        raise TreeError(f"src {show(src)} does not exist")
    root = os.path.realpath(src)
    if not os.path.isdir(root):
        raise TreeError(f"src {show(src)} is not a directory")
    if not os.access(root, os.R_OK | os.X_OK):
        raise TreeError(f"src {show(src)} cannot be read by this user; set become for the source host")
    return root


def _send(channel: Channel, root: bytes, entries: List[Entry], hashes: Dict[bytes, str], want: List[Any]) -> None:
    for number in want:
        entry = entries[number]
        digest = hashlib.sha256()
        channel.send_frame(FILE_INDEX, INDEX.pack(number))
        for data in read_file(root, entry):
            digest.update(data)
            channel.send_frame(DATA, data)
        if digest.hexdigest() != hashes[entry.path]:
            raise TreeError(
                f"{show(entry.path)} changed after it was listed; stop what writes to the environment and run again"
            )
        channel.send_frame(SUM, digest.digest())
    channel.send("sent")
