# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The source's end of a stream: lists and hashes a tree, then sends the files it is asked for. It writes nothing into the tree."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import Any, Dict, List, Set, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._index import HashIndex, index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import environment
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.codec import find_codec
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.inbox import Inbox
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.listing import entry_row, folder_digest, folders
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.progress import Progress, peak_memory
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.sender import Group, Sender
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.sinks import Sinks
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    Channel,
    Message,
    encode_path,
    from_runs,
    send_rows,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import (
    FILE,
    Entry,
    TreeError,
    hash_into,
    open_scanned,
    scan,
    show,
    tree_digest,
)


def hash_known(root: bytes, entries: List[Entry], index: HashIndex, full: bool, progress: Progress) -> Dict[bytes, str]:
    """SHA-256 by path of every file: from the index where it is unchanged (unless ``full``), else by reading it."""

    def done(entry: Entry, sha256: str, seen_ns: int) -> None:
        index.add(entry, sha256, seen_ns)
        progress.add(1, entry.size)

    return hash_tree(root, entries, None if full else index.lookup, done)


class Source:
    """One tree being offered to one relay."""

    def __init__(self, channel: Channel, request: Message) -> None:
        self._channel = channel
        self._root = _open(os.fsencode(request["src"]))
        self._sinks = Sinks(channel)
        self._seconds: Dict[str, float] = {}
        self._listed: List[Tuple[bytes, List[Entry]]] = []
        progress = Progress(channel, "hash")
        started = time.monotonic()
        special: Dict[bytes, int] = {}
        self._entries = scan(self._root, request["exclude"], special)
        if not self._entries:
            raise TreeError(f"{show(self._root)} is empty; name the directory of the environment as src")
        self._seconds["scan"] = time.monotonic() - started
        index = HashIndex(index_path(self._root))
        self._hashes = hash_known(self._root, self._entries, index, request["full"], progress)
        if not request["check"]:
            index.save(prune=True)
        self._seconds["hash"] = time.monotonic() - started - self._seconds["scan"]
        self._hashed = (progress.files, progress.bytes)
        self._special = special

    def describe(self, interpreter: bool) -> Dict[str, Any]:
        """The ``tree`` message: digest, figures, environment."""
        files = [entry for entry in self._entries if entry.kind == FILE]
        codec = find_codec()
        return {
            "digest": tree_digest(self._entries, self._hashes),
            "files": len(files),
            "bytes": sum(entry.size for entry in files),
            "entries": len(self._entries),
            "hashed": self._hashed[0],
            "hashed_bytes": self._hashed[1],
            "environment": {} if interpreter else environment.describe(self._root, self._hashes),
            "shared": sum(1 for entry in files if entry.nlink > 1),
            "special": [[encode_path(path), mode] for path, mode in sorted(self._special.items())],
            "codec": codec.backend if codec else "",
            "processors": os.cpu_count() or 1,
        }

    def converse(self) -> None:
        """Answer until ``bye``."""
        channel, inbox = self._channel, Inbox(self._channel)
        while True:
            message = inbox.receive("folders", "list", "connect", "send", "bye")
            if message["op"] == "folders":
                self._listed = list(folders(self._entries).items())
                send_rows(
                    channel,
                    "folders",
                    [[encode_path(path), folder_digest(inside, self._hashes)] for path, inside in self._listed],
                )
            elif message["op"] == "list":
                rows = [entry_row(entry, self._hashes) for place in message["want"] for entry in self._inside(place)]
                send_rows(channel, "entries", rows)
            elif message["op"] == "connect":
                channel.send("connected", failed=self._sinks.connect(message))
            elif message["op"] == "send":
                with inbox.listening(self._sinks.stop):
                    self._send(message)
            else:
                return

    def close(self) -> None:
        self._sinks.close()

    def _inside(self, place: int) -> List[Entry]:
        """The entries of a directory; none of what is no directory, without which the target that asked for it fails by itself."""
        return self._listed[place][1] if 0 <= place < len(self._listed) else []

    def _send(self, message: Message) -> None:
        """Send the groups of one pass, until all are sent or the relay says ``stop``, and close the connections that they went over."""
        started, before = time.monotonic(), self._channel.sent
        sinks = self._sinks
        sinks.begin()
        sender = Sender(self._root, self._entries, sinks, message["compress"], message["rate"])
        with contextlib.closing(sender):
            for asked in message["groups"]:
                if sinks.stopped:
                    break
                sender.send(self._group(asked))
            with sender.progress.heartbeat():
                sinks.end()
        self._seconds["send"] = self._seconds.get("send", 0.0) + time.monotonic() - started
        lost, direct = sinks.lost(), sinks.sent
        sinks.close()
        self._channel.send(
            "sent",
            lost=lost,
            stopped=sinks.stopped,
            read=sender.read,
            bytes=self._channel.sent - before + sinks.sent - direct,
            rates=sender.pace.rates(),
            seconds={name: round(value, 3) for name, value in self._seconds.items()},
            peak_memory=peak_memory(),
        )

    def _group(self, asked: Message) -> Group:
        """What to send; a target that asked for what is no file does not get it, and fails by itself.

        Of a file that several targets have in part, what all of them have is not sent.
        """
        numbers = [n for n in from_runs(asked["runs"], len(self._entries)) if self._entries[n].kind == FILE]
        files = set(numbers)
        told: Dict[int, List[Dict[int, str]]] = {}
        for number, prefixes in asked["partial"]:
            if number in files:
                told.setdefault(number, []).append(dict(prefixes))
        agreed = {number: self._agreed(self._entries[number], beginnings) for number, beginnings in told.items()}
        offsets = {number: offset for number, offset in agreed.items() if offset}
        return Group(numbers, offsets, asked["sinks"], asked["takers"])

    def _agreed(self, entry: Entry, beginnings: List[Dict[int, str]]) -> int:
        """How much of a file all have that tell the hashes of what they have of it, by length. It is read once for all of them."""
        digest, done = hashlib.sha256(), 0
        agreed = [0] * len(beginnings)
        doubted: Set[int] = set()
        with open_scanned(self._root, entry) as fd:
            for length in sorted({length for told in beginnings for length in told}):
                if not done < length <= entry.size or len(doubted) == len(beginnings):
                    break
                hash_into(digest, fd, length - done, entry.path)
                done, ours = length, digest.hexdigest()
                for place, told in enumerate(beginnings):
                    if place in doubted or length not in told:
                        continue
                    if told[length] == ours:
                        agreed[place] = length
                    else:
                        doubted.add(place)
        return min(agreed)


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


def serve(channel: Channel, request: Message, opened: contextlib.ExitStack) -> None:
    """Answer one relay; ``scan`` has ``src``, ``exclude``, ``full`` and ``check``. See docs/protocol.md.

    Connections to targets are closed with ``opened``.
    """
    source = Source(channel, request)
    opened.callback(source.close)
    channel.send("tree", **source.describe(bool(request.get("interpreter"))))
    source.converse()
