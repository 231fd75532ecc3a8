# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs one of our small programs in a release's own interpreter, bounded, and hands over what it answers.

Program and request go in through stdin and answers come back as JSON lines on a pipe of their own: nothing is written
to disk, nothing stands on a command line, and whatever imports print on stdout cannot be mistaken for an answer.
"""

from __future__ import annotations

import inspect
import json
import os
import select
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Sequence, cast

from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError

# The empty first entry of sys.path that -c brings would import from the current directory.
_BOOTSTRAP = (
    "import json, sys; sys.path[:1] = [entry for entry in sys.path[:1] if entry]; "
    "sent = json.loads(sys.stdin.buffer.read()); "
    "made = [sys.modules.setdefault(name, type(sys)(name)) for name, _source in sent['modules']]; "
    "[exec(compile(source, '<ddtree.fleet>', 'exec'), module.__dict__)"
    " for module, (_name, source) in zip(made, sent['modules'])]; "
    "made[-1].main(sent['request'], sent['answers'])"
)
_OUTPUT_BYTES = 16384
_ENDING_SECONDS = 10


@dataclass(frozen=True)
class Outcome:
    """How the program ended: ``stopped`` by the watcher, ``timed_out``, or by itself (negative code: a signal)."""

    returncode: int
    timed_out: bool
    stopped: bool
    output: List[str]
    seconds: float

    def ending(self) -> str:
        if self.timed_out:
            return f"no end after {self.seconds:.0f} s"
        if self.returncode < 0:
            try:
                return f"ended by {signal.Signals(-self.returncode).name}"
            except ValueError:
                return f"ended by signal {-self.returncode}"
        return f"exit status {self.returncode}"


class _Tail:
    """The last part of what the program prints, read as it comes so that the program never blocks on a full pipe."""

    def __init__(self, stream: IO[bytes], redactor: Redactor) -> None:
        self._kept = b""
        self._cut = False
        self._stream = stream
        self._redactor = redactor
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while True:
                chunk = os.read(self._stream.fileno(), 65536)
                if not chunk:
                    return
                self._cut = self._cut or len(self._kept) + len(chunk) > _OUTPUT_BYTES
                self._kept = (self._kept + chunk)[-_OUTPUT_BYTES:]
        except (OSError, ValueError):
            return

    def lines(self, count: int = 80) -> List[str]:
        self._thread.join(timeout=2)
        # The line that was cut may begin with half a secret, which nothing recognises.
        whole = self._kept.partition(b"\n")[2] if self._cut else self._kept
        lines = [line for line in whole.decode("utf-8", "replace").splitlines() if line.strip()]
        return [self._redactor.bounded(line, 400) for line in lines[-count:]]


def run_program(
    argv: List[str],
    program: ModuleType,
    request: Dict[str, Any],
    environment: Dict[str, str],
    timeout: float,
    answer: Callable[[Dict[str, Any]], None],
    watch: Optional[Callable[[], bool]] = None,
    libraries: Sequence[ModuleType] = (),
    redactor: Optional[Redactor] = None,
) -> Outcome:
    """Run ``program`` with ``argv`` (an interpreter with flags, maybe behind a wrapper); ``answer`` gets what it says.

    ``libraries`` are sent too, for the program to import by their full names.
    ``watch`` is called about once a second and ends the program at once by returning false. The program and all that it
    started are gone when this returns. What it prints passes ``redactor`` before it is cut. Raises GateError when the
    interpreter cannot be started.
    """
    reader, writer = os.pipe()
    started = time.monotonic()
    try:
        # run_command of AnsibleModule cannot watch a unit meanwhile.
        process = subprocess.Popen(  # pylint: disable=ansible-bad-function
            argv + ["-c", _BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[writer],
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        os.close(reader)
        os.close(writer)
        raise GateError(f"{argv[0]} cannot be run: {error.strerror or error}") from None
    os.close(writer)
    output = _Tail(cast(IO[bytes], process.stdout), redactor or Redactor())
    modules = [(module.__name__, inspect.getsource(module)) for module in (*libraries, program)]
    sent = json.dumps({"modules": modules, "request": request, "answers": writer}).encode()
    threading.Thread(target=_send, args=(cast(IO[bytes], process.stdin), sent), daemon=True).start()
    timed_out = stopped = False
    try:
        lines = _Lines(reader)
        next_look = started + 1.0
        while True:
            ended = process.poll() is not None
            for line in lines.read(0.0 if ended else 0.2):
                answer(line)
            now = time.monotonic()
            if ended:
                break
            if now - started > timeout:
                timed_out = True
                break
            if watch is not None and now >= next_look:
                if not watch():
                    stopped = True
                    break
                next_look = time.monotonic() + 1.0
    finally:
        _end(process)
        os.close(reader)
    seconds = time.monotonic() - started
    returncode = -signal.SIGKILL if process.returncode is None else process.returncode
    return Outcome(returncode, timed_out, stopped, output.lines(), seconds)


@contextmanager
def cleaning_up_on_signals() -> Iterator[None]:
    """A module that is told to end (a lost connection, a time-out above it) still runs its ``finally`` blocks."""
    ended = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, _end_by_signal) for number in ended]
    try:
        yield
    finally:
        for number, handler in zip(ended, before):
            signal.signal(number, handler)


def _end_by_signal(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


class _Lines:
    """JSON objects, one a line, from a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self._open = True

    def read(self, wait: float) -> List[Dict[str, Any]]:
        """What has come; waits up to ``wait`` seconds for the first byte."""
        if not self._open:
            # The program has closed its end: it is about to be gone.
            time.sleep(min(wait, 0.02))
            return []
        while select.select([self._descriptor], [], [], wait)[0]:
            chunk = os.read(self._descriptor, 65536)
            if not chunk:
                self._open = False
                break
            self._rest += chunk
            wait = 0.0
        *complete, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in complete if line.strip()]


def _send(stream: IO[bytes], data: bytes) -> None:
    try:
        stream.write(data)
        stream.close()
    except (OSError, ValueError):
        # The program ended before it had read everything: its exit says why.
        return


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        # The kernel holds it, in a driver say, and ends it when it lets go.
        return
