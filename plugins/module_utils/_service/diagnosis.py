# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is kept of a release that failed: why, its unit files, and the journal of its invocations, without secrets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
from typing import Any, Dict, List, Sequence, Set

from ansible_collections.ddtree.fleet.plugins.module_utils._releases import Store, write_atomically
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._service.family import Files
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import Paths
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.secrets import read_api_key

KEPT = 5
JOURNAL_BYTES = 2 << 20
JOURNAL_SECONDS = 30
_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-z]+\Z")


def secrets(paths: Paths) -> Set[str]:
    """The API keys in the key files of a family as they stand now."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(paths.keys):
            with contextlib.suppress(GateError):
                found.add(read_api_key(os.path.join(paths.keys, name)))
    return found


def keep(
    store: Store,
    release: str,
    when: str,
    reason: Dict[str, Any],
    files: Files,
    journals: Dict[str, Sequence[str]],
    redactor: Redactor,
) -> str:
    """Write ``failed/<time>-<release>/`` and keep the newest few; gives its path. ``journals``: invocations by unit.

    The same release and time give the same folder, so that going back which is run again writes no second one.
    """
    root = os.path.join(store.root, "failed")
    os.makedirs(root, mode=0o700, exist_ok=True)
    folder = os.path.join(root, f"{re.sub('[-:]', '', when)}-{release}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_atomically(os.path.join(folder, "reason.json"), json.dumps(redactor.clean(reason), indent=1) + "\n", 0o600)
    for name, file in files.items():
        path = os.path.join(folder, "units", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomically(path, redactor.text(file.content.decode("utf-8", "replace")), 0o600)
    for unit, invocations in journals.items():
        write_atomically(os.path.join(folder, f"{unit}.log"), journal(invocations, redactor), 0o600)
    for name in sorted(name for name in os.listdir(root) if _NAME.match(name))[:-KEPT]:
        shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    return folder


def journal(invocations: Sequence[str], redactor: Redactor) -> str:
    """The newest lines of some invocations, systemd's own about them too: redacted, then bounded."""
    if not invocations:
        return ""
    # What the processes printed, or (+) what systemd said about them.
    printed = [f"_SYSTEMD_INVOCATION_ID={invocation}" for invocation in invocations]
    said = [f"INVOCATION_ID={invocation}" for invocation in invocations]
    options = ["--no-pager", "--quiet", "--output=short-iso-precise", "--reverse"]
    text = _beginning(["journalctl", *options, *printed, "+", *said], 2 * JOURNAL_BYTES)
    lines = [redactor.text(line) for line in text.splitlines()]
    size = 0
    newest: List[str] = []
    for line in lines:
        size += len(line.encode()) + 1
        if size > JOURNAL_BYTES:
            break
        newest.append(line)
    return "".join(line + "\n" for line in reversed(newest))


def _beginning(command: Sequence[str], limit: int) -> str:
    """The first bytes that a command prints, within bounded time; why not, when it cannot be run."""
    try:
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        return f"({command[0]} cannot be run: {error})\n"
    watchdog = threading.Timer(JOURNAL_SECONDS, process.kill)
    watchdog.start()
    try:
        output = process.stdout.read(limit) if process.stdout else b""
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()
    return output.decode("utf-8", "replace")
