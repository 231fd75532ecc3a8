# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A leg: one running agent on one host, with its handshake, its time-outs and its end."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Optional, cast

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import MAGIC, Channel, Message, PeerError
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import MIN_PYTHON, bundle
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint

HANDSHAKE_LIMIT = 64 << 10
STDERR_KEPT = 8 << 10
BUFFER = 64 << 10  # blocks are larger and pass without a copy
F_SETPIPE_SZ = 1031
SPLICE_F_NONBLOCK = 2
PIPE = 1 << 20
AGENT_START_S = 20
TIDY_UP_S = 5.0
TRIES = 3
REFUSED_FOR_NOW = re.compile(rb"kex_exchange_identification|Connection reset by|Connection closed by remote host")


class LegError(Exception):
    """A leg that could not be opened or broke; the message starts with the host."""


class _Reader:
    """A pipe that gives up when nothing comes for ``timeout`` seconds (None: never). Holds nothing back, so it can be spliced from."""

    def __init__(self, fd: int, timeout: Optional[float]) -> None:
        self.fd = fd
        self.timeout = timeout

    def wait(self) -> None:
        if not select.select([self.fd], [], [], self.timeout)[0]:
            raise PeerError(f"nothing came for {self.timeout:.0f} s; the host or the network hangs")

    def read_some(self, most: int) -> bytes:
        self.wait()
        return os.read(self.fd, most)

    def read(self, length: int) -> bytearray:
        """Exactly so many bytes, fewer only at the end."""
        data = bytearray(length)
        view = memoryview(data)
        done = 0
        while done < length:
            self.wait()
            count = os.readv(self.fd, [view[done:]])
            if not count:
                view.release()
                del data[done:]
                break
            done += count
        return data


class _Writer(io.RawIOBase):
    """A pipe that gives up when it takes nothing for ``timeout`` seconds."""

    def __init__(self, fd: int, timeout: float) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.timeout = timeout
        self.ended = False
        self.waited = 0.0  # seconds until it took what was written

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.ended:  # the descriptor may belong to something else by now
            return len(data)
        while True:
            self.wait()
            with contextlib.suppress(BlockingIOError):
                return os.write(self.fd, data)

    def wait(self) -> None:
        since = time.monotonic()
        ready = select.select([], [self.fd], [], self.timeout)[1]
        self.waited += time.monotonic() - since
        if not ready:
            raise PeerError(f"nothing was taken for {self.timeout:.0f} s; the host or the network hangs")


class Leg:
    """An agent on one host. Use as a context manager: leaving it ends the agent, however things went."""

    def __init__(
        self,
        endpoint: Endpoint,
        python: str,
        idle: float,
        heard: Callable[[str, Message], None] = lambda host, progress: None,
    ) -> None:
        """``heard`` is told what the agent says of its progress."""
        self.host = endpoint.host
        self._heard = heard
        self._sending = threading.Lock()  # one message at a time, whoever sends it
        self._endpoint = endpoint
        self._python = python
        self._idle = idle
        self._stderr = bytearray()
        self._answered = False
        self._broken = False
        for left in range(TRIES - 1, -1, -1):
            self._start()
            try:
                if self._handshake():
                    break
                self._end(grace=0)
                self._endpoint = self._endpoint.without_ciphers()
                self._start()
                self._handshake()
                break
            except LegError:
                self._end(grace=0)
                if not left or not REFUSED_FOR_NOW.search(self._stderr):
                    raise
                time.sleep(TRIES - left)
            except BaseException:
                self._end(grace=0)
                raise

    def _start(self) -> None:
        self._stderr.clear()
        self._answered = False
        argv: list[str] = list(self._endpoint.argv)
        pass_fds: tuple[int, ...] = ()
        if self._endpoint.login_password:
            read_end, write_end = os.pipe()
            os.write(write_end, self._endpoint.login_password.encode() + b"\n")
            os.close(write_end)
            argv, pass_fds = ["sshpass", f"-d{read_end}", *argv], (read_end,)
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        for fd in pass_fds:
            os.close(fd)
        stdin, stdout = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        for pipe in (stdin, stdout):
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe.fileno(), F_SETPIPE_SZ, PIPE)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._raw = _Reader(stdout.fileno(), self._idle)
        self._sink = _Writer(stdin.fileno(), self._idle)
        writer = io.BufferedWriter(self._sink, BUFFER)
        self._writer = writer
        self.channel = Channel(cast(BinaryIO, self._raw), cast(BinaryIO, writer))

    def _listen(self) -> None:
        """Keep the end of standard error, and answer the one question that may come there."""
        stderr = cast(BinaryIO, self._process.stderr)
        while True:
            data = os.read(stderr.fileno(), 4096)
            if not data:
                return
            self._stderr += data
            del self._stderr[:-STDERR_KEPT]
            prompt = self._endpoint.prompt.strip().encode()
            if prompt and prompt in self._stderr and not self._answered and self._process.stdin:
                self._answered = True
                os.write(self._process.stdin.fileno(), self._endpoint.become_password.encode() + b"\n")

    def _handshake(self) -> bool:
        """Wait for the agent's first line, with nothing before it, then hand it its program.

        False, and nothing handed over, when the processor there is slow with the cipher that was preferred for this connection.
        """
        deadline = time.monotonic() + self._endpoint.timeout + AGENT_START_S
        lines = self._first_lines(deadline)
        expected = [self._endpoint.success] if self._endpoint.success else []
        noise = [line for line in lines[:-1] if line not in expected]
        if noise:
            raise LegError(
                f"{self.host}: something prints to standard output before any command runs there, first {noise[0][:80]!r}; data cannot "
                "pass such a login. Let the shell's start-up files print nothing when no terminal is attached"
            )
        version = tuple(int(part) for part in lines[-1].split()[1].split("."))
        if version < MIN_PYTHON:
            raise LegError(
                f"{self.host}: {self._python} is Python {lines[-1].split()[1]}, streams need 3.9 or newer; set ansible_python_interpreter"
            )
        if self._endpoint.ciphers and lines[-1].split()[2:] == ["0"]:
            return False
        try:
            self._writer.write(bundle())
            self._writer.flush()
        except (OSError, PeerError):
            raise LegError(self._why_ended()) from None
        return True

    def _first_lines(self, deadline: float) -> list[str]:
        """Everything up to and with the agent's own first line."""
        data = b""
        while True:
            self._raw.timeout = max(0.1, deadline - time.monotonic())
            try:
                piece = self._raw.read_some(4096)
            except PeerError:
                raise LegError(
                    f"{self.host}: no answer within {self._endpoint.timeout + AGENT_START_S} s{self._said()}"
                ) from None
            data += piece
            lines = data.decode("utf-8", "replace").split("\n")
            for number, line in enumerate(lines[:-1]):
                before, found, version = line.partition(MAGIC + " ")
                if found:
                    self._raw.timeout = self._idle
                    return [*lines[:number], *([before] if before else []), found + version]
            if not piece:
                raise LegError(self._why_ended())
            if len(data) > HANDSHAKE_LIMIT:
                raise LegError(f"{self.host}: the login prints without end, first {lines[0][:80]!r}")

    def _why_ended(self) -> str:
        self._listener.join(2)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        status = self._process.returncode
        said = bytes(self._stderr).decode("utf-8", "replace")
        if status == 127 or ("No such file or directory" in said and self._python in said):
            return f"{self.host}: there is no {self._python}; install Python 3.9 or newer there or set ansible_python_interpreter"
        if "a password is required" in said or "incorrect password" in said or "Sorry, try again" in said:
            return f"{self.host}: privilege escalation wants a password that was not given or is wrong; set ansible_become_password"
        return f"{self.host}: the connection ended before the agent started ({'still running' if status is None else f'exit status {status}'}){self._said()}"

    def _said(self) -> str:
        lines = [line for line in bytes(self._stderr).decode("utf-8", "replace").splitlines() if line.strip()]
        return f": {' / '.join(lines[-3:])[:400]}" if lines else ""

    # while it runs

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Turn every failure inside into a LegError that starts with the host."""
        try:
            yield
        except PeerError as error:
            self._broken = True
            raise LegError(f"{self.host}: {error}{self._said() if 'connection ended' in str(error) else ''}") from error
        except (BrokenPipeError, ConnectionError) as error:
            self._broken = True
            raise LegError(self._last_words()) from error

    def _last_words(self) -> str:
        """What the agent still said when a write to it failed: its own error tells more than a broken pipe."""
        try:
            while True:
                self.channel.receive("progress", "entries")
        except PeerError as error:
            return f"{self.host}: {error}{self._said()}"

    def ask(self, op: str, *answers: str, **fields: Any) -> Message:
        """Send one message and wait for its answer."""
        self.tell(op, **fields)
        return self.answer(*answers)

    def tell(self, op: str, **fields: Any) -> None:
        with self.named(), self._sending:
            self.channel.send(op, **fields)

    def answer(self, *answers: str) -> Message:
        """The next message that is one of ``answers``; progress is passed over and shows that the agent lives."""
        with self.named():
            while True:
                message = self.channel.receive("progress", *answers)
                if message["op"] != "progress":
                    return message
                self._heard(self.host, message)

    def pass_on(self, other: Leg, kind: int, length: int) -> None:
        """Hand the frame whose header was just received to ``other``, within the kernel.

        Raises LegError when this end fails, PeerError or OSError when the other one does; what follows can be received then.
        """
        left = length
        try:
            other.channel.send_header(kind, length)
            other.channel.flush()
            while left:
                with self.named():
                    self._raw.wait()
                try:
                    count = os.splice(self._raw.fd, other._sink.fd, left, flags=SPLICE_F_NONBLOCK)
                except BlockingIOError:  # there is something to take, so the other end is full
                    other._sink.wait()
                    continue
                if not count:
                    with self.named():
                        raise PeerError("the connection ended before the work was done")
                left -= count
        except (OSError, PeerError):
            with self.named():
                self.channel.receive_content(kind, left)
            raise

    @property
    def waited(self) -> float:
        """For how many seconds the agent has not taken what was sent to it."""
        return self._sink.waited

    def call_out(self, op: str) -> None:
        """Send a message while another thread listens, which hears of a failure."""
        with contextlib.suppress(OSError, PeerError, ValueError), self._sending:
            self.channel.send(op)

    def kill(self) -> None:
        """End the connection at once; a thread that reads from it gets an error, an agent on this host its chance to tidy up.

        A signal that hits an agent in the wrong place may not end it, so one that lives on is not asked again.
        """
        self._process.terminate()
        timer = threading.Timer(TIDY_UP_S, self._process.kill)
        timer.daemon = True
        timer.start()

    def __enter__(self) -> Leg:
        return self

    def __exit__(self, *_: object) -> None:
        self._end(grace=0 if self._broken else 5)

    def _end(self, grace: float) -> None:
        """Close the streams, which ends the agent; then make sure."""
        self._sink.timeout = grace
        with contextlib.suppress(OSError, ValueError, PeerError):
            self._writer.flush()
        self._sink.ended = True
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        for stop in (None, self._process.terminate, self._process.kill):
            if stop:
                stop()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace or 1)
                break
        self._listener.join(2)
        if self._process.stderr:
            self._process.stderr.close()
