# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bytecode: every module of a release compiled before it is committed, by the release's own interpreter.

A server then starts in less than half the time and never writes into the release. The files are unchecked-hash .pyc: a release
does not change once committed, so nothing is looked up at import. They do not count for the tree's identity.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from typing import Callable, Dict, Iterator, List, TextIO, Tuple, cast

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.interpreter import ask_python
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, IGNORED_NAME, Entry, TreeError

# Runs in the release's interpreter: compiles [source, shown path, target] triples, one JSON line each; answers a line per file.
COMPILE_PROGRAM = """
import json, py_compile, sys, warnings
warnings.simplefilter("ignore")
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
for line in sys.stdin:
    source, shown, target = json.loads(line)
    try:
        py_compile.compile(source, target, shown, doraise=True, invalidation_mode=mode)
        print("1", flush=True)
    except Exception:
        print("0", flush=True)
"""
TAG_PROGRAM = "import sys; print(sys.implementation.cache_tag)"


def bytecode_path(path: bytes, tag: str) -> bytes:
    """Where the bytecode of the module at ``path`` belongs, such as ``a/__pycache__/b.cpython-312.pyc``."""
    directory, name = os.path.split(path)
    return os.path.join(directory, IGNORED_NAME, name[: -len(b".py")] + f".{tag}.pyc".encode())


def modules(entries: List[Entry]) -> List[Entry]:
    """The files that get bytecode: modules below ``lib``."""
    return [
        entry
        for entry in entries
        if entry.kind == FILE and entry.path.endswith(b".py") and entry.path.startswith(b"lib/")
    ]


def cache_tag(root: bytes) -> str:
    """The interpreter's name in bytecode file names, such as ``cpython-312``; raises TreeError when it does not run."""
    return ask_python(os.path.join(root, b"bin/python"), TAG_PROGRAM)


def compile_modules(
    root: bytes, dest: bytes, paths: List[bytes], tag: str, progress: Callable[[int], None]
) -> Dict[str, int]:
    """Compile the modules at ``paths`` below ``root`` as if they stood at ``dest``, one process per processor.

    What does not compile is left to the interpreter, as it would be after an installation by pip. Gives the numbers of files
    ``compiled`` and ``refused``.
    """
    done: List[Tuple[int, int]] = []
    queue = iter(paths)
    lock = threading.Lock()
    threads = [
        threading.Thread(target=_feed, args=(root, dest, queue, lock, tag, done, progress), daemon=True)
        for _number in range(min(os.cpu_count() or 1, 16, max(len(paths), 1)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(done) != len(paths):
        raise TreeError(f"compiling bytecode ended early: {len(done)} of {len(paths)} modules")
    return {"compiled": sum(good for good, bad in done), "refused": sum(bad for good, bad in done)}


def _feed(
    root: bytes,
    dest: bytes,
    queue: Iterator[bytes],
    lock: threading.Lock,
    tag: str,
    done: List[Tuple[int, int]],
    progress: Callable[[int], None],
) -> None:
    command = [os.path.join(root, b"bin/python"), b"-I", b"-B", b"-S", b"-c", COMPILE_PROGRAM.encode()]
    with subprocess.Popen(  # pylint: disable=ansible-bad-function  # an agent has no module's run_command
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as worker:
        stdin, stdout = cast(TextIO, worker.stdin), cast(TextIO, worker.stdout)
        while True:
            with lock:
                path = next(queue, None)
            if path is None:
                break
            names = [os.path.join(root, path), os.path.join(dest, path), os.path.join(root, bytecode_path(path, tag))]
            try:
                stdin.write(json.dumps([os.fsdecode(name) for name in names]) + "\n")
                stdin.flush()
                answer = stdout.readline().strip()
            except OSError:
                break
            if answer not in ("0", "1"):
                break
            with lock:
                done.append((1, 0) if answer == "1" else (0, 1))
                progress(len(done))
        with contextlib.suppress(OSError):  # a worker that is gone is told by the number of answers
            stdin.close()
