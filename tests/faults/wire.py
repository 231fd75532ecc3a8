# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stands between a relay and an agent as ssh does, passes bytes both ways, and breaks when it is told to.

usage: wire.py REPORT FAULT PROGRAM...

REPORT is a file that always holds one JSON object: the process ids of the ``agent``, this ``wire`` and, once there is one, the
``keeper`` of a lost connection, the bytes passed ``to`` the agent and ``from`` it, and whether the fault's point was ``reached``. What the agent prints on standard error is passed on and kept in REPORT.stderr. FAULT is
``none`` or DIRECTION:BYTES:WHAT, where WHAT happens once BYTES have passed in DIRECTION (``to`` or ``from``):

flip            the next byte is damaged
cut             this direction ends, the other goes on
drop            the connection is gone: this program ends, the agent's streams are closed
stall=SECONDS   nothing passes for so long
hang            nothing passes any more
linger          the same, and the agent's streams stay open when this program is killed, as when a network dies silently
ask=SOCKET      the Unix socket is connected to; bytes pass again when it is closed
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

PIECE = 1 << 20
REPORT_BYTES = 200
LOST = 255  # ssh's exit status for a lost connection


class Wire:
    """One agent's streams."""

    def __init__(self, report: str, fault: str, argv: list[str]) -> None:
        self._fault_direction, number, self._what = fault.split(":", 2) if fault != "none" else ("", "-1", "")
        self._at = int(number)
        self._passed = {"to": 0, "from": 0}
        self._reached = False
        self._keeper = 0
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._report = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._kept = os.open(report + ".stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._agent = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._agent.stdin and self._agent.stdout and self._agent.stderr
        self._stdin, self._stdout = os.dup(self._agent.stdin.fileno()), os.dup(self._agent.stdout.fileno())
        self._stderr = os.dup(self._agent.stderr.fileno())
        for stream in (self._agent.stdin, self._agent.stdout, self._agent.stderr):
            stream.close()
        for fd in (self._stdin, self._stdout, 0, 1):
            with contextlib.suppress(OSError):  # no pipe, or over the user's limit: only slower
                fcntl.fcntl(fd, 1031, PIECE)  # F_SETPIPE_SZ
        self._tell()

    def run(self) -> int:
        """Pass bytes until the agent ends; gives its exit status."""
        threading.Thread(target=self._pass, args=("to", 0, self._stdin), daemon=True).start()
        saying = threading.Thread(target=self._say, daemon=True)
        saying.start()
        self._pass("from", self._stdout, 1)
        saying.join()
        status = self._agent.wait()
        return status if status >= 0 else 128 - status

    def _tell(self) -> None:
        processes = {"agent": self._agent.pid, "wire": os.getpid(), "keeper": self._keeper}
        state = {**processes, **self._passed, "reached": self._reached}
        os.pwrite(self._report, json.dumps(state).ljust(REPORT_BYTES).encode(), 0)

    def _say(self) -> None:
        while data := os.read(self._stderr, PIECE):
            os.write(self._kept, data)
            with contextlib.suppress(OSError):
                os.write(2, data)

    def _pass(self, direction: str, reader: int, writer: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            while True:
                left = self._at - self._passed[direction] if direction == self._fault_direction else -1
                data = os.read(reader, min(PIECE, left) if left > 0 else PIECE)
                self._open.wait()
                if not data:
                    break
                if left == 0 and self._what == "flip" and not self._reached:
                    data = bytes([data[0] ^ (1 << self._at % 8)]) + data[1:]
                    self._reached = True
                view = memoryview(data)
                while view:
                    view = view[os.write(writer, view) :]
                with self._lock:
                    self._passed[direction] += len(data)
                    self._tell()
                if left == len(data) and self._what != "flip" and not self._strike():
                    break
        os.close(writer)
        os.close(reader)

    def _strike(self) -> bool:
        """Do what is wrong; gives whether this direction goes on."""
        what, _equals, detail = self._what.partition("=")
        self._reached = True
        with self._lock:
            self._tell()
        if what == "drop":
            os.write(2, b"client_loop: send disconnect: Broken pipe\n")
            os._exit(LOST)
        if what == "stall":
            self._open.clear()
            time.sleep(float(detail))
            self._open.set()
        elif what == "ask":
            with socket.socket(socket.AF_UNIX) as asked:
                asked.connect(detail)
                asked.recv(1)
        elif what in ("hang", "linger"):
            self._open.clear()
            if what == "linger":
                self._keeper = os.fork()
                if not self._keeper:
                    self._keep_open()
                self._tell()
            self._open.wait()
        return what != "cut"

    def _keep_open(self) -> None:
        """Hold the agent's streams, and nothing of the relay's, until killed."""
        os.setsid()
        for fd in (0, 1, 2):
            os.close(fd)
        while True:
            signal.pause()


if __name__ == "__main__":
    os._exit(Wire(sys.argv[1], sys.argv[2], sys.argv[3:]).run())
