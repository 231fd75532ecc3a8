# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One fault: a stream that is hit by it, what must still be true then, and the next stream, which must finish the work."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing.process
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import payload
from engine import MARK, SOURCE, TARGET, Run
from kinds import ASKED, FIRST_LINE_BYTES, SHORT_IDLE_S, STALL_S, Fault, draw
from link import Link

DISK = ("size=400m", "nr_inodes=20000")
POLL_S = 0.005
GRACE_S = 10.0  # for the agents of a run that ended; one may be in its two seconds of quiet
RUN_LIMIT_S = 60.0
PROMPT_S = 15.0  # within this, a run ends whose fault can be noticed at once
RESUMED_FROM = 8 << 20  # bytes of a cut off file that the next run goes on with; fewer are sent again
FILL_TRIES = 200  # the run goes on writing while its disk is made smaller
RELEASE = re.compile(rb"[0-9a-f]{16}\Z")
SENTENCE = re.compile(r"(a|b): \S[^\n]{10,600}\Z")
FOR_PROGRAMMERS = re.compile(r"Traceback|\bErrno\b|\b[A-Z]\w*(Error|Exception)\b|<class |(\\x[0-9a-f]{2}.*){6}")


@dataclass
class Outcome:
    """What came of a fault: ``came`` is ``failed``, ``succeeded`` or ``killed`` (no verdict, the relay being gone)."""

    seed: int
    kind: str
    fault: str = ""
    phase: str = ""
    passed_bytes: int = 0
    came: str = ""
    msg: str = ""
    after: str = ""
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        came = f"{self.came}: {self.msg}" if self.msg else self.came
        end = f"; FAILED: {'; '.join(self.problems)}" if self.problems else " ok"
        where = f"[{self.passed_bytes / 1e6:.1f} MB passed, phase {self.phase or '?'}]"
        return f"seed {self.seed} {self.fault or self.kind} {where} -> {came}; {self.after}{end}"


class Slots:
    """How many cases work at once. One that only waits lends its slot to another."""

    def __init__(self, number: int) -> None:
        self._free = threading.Semaphore(number)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        with self._free:
            yield

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        self._free.release()
        try:
            yield
        finally:
            self._free.acquire()


class Case:
    """A fault in a folder of its own, where the target's file system is mounted."""

    def __init__(self, seed: int, kind: str, path: str, work: Path, slots: Slots) -> None:
        self.outcome = Outcome(seed, kind)
        self.folder = work / str(seed)
        self._rng = random.Random(seed)
        self._path = path
        self._slots = slots
        self._src = self.folder / "src"
        self._disk = self.folder / "disk"
        self._dest = self._disk / "root" / "venv"
        self._store = Path(f"{self._dest}.releases")
        self._lock = Path(f"{self._dest}.lock")
        self._link = Link(seed) if path == "direct" else None
        self._struck = 0.0  # when, by the monotonic clock
        self._before: payload.Snapshot = {}
        self._history = b""
        self._used_at_first = 0
        self._victim = b""  # the file that source-changed hits
        self._whole: list[payload.Snapshot] = []  # the trees that a new release may be

    def run(self) -> Outcome:
        with self._slots.taken(), self._mounted():
            try:
                self._examine()
            except Exception as error:
                self._problem(f"the test itself failed: {type(error).__name__}: {error}")
                self._kill_marked("")
        return self.outcome

    def _problem(self, text: str) -> None:
        self.outcome.problems.append(text)

    @contextlib.contextmanager
    def _mounted(self) -> Iterator[None]:
        self._disk.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", ",".join(DISK), "ddtree-faults", str(self._disk)]
        subprocess.run(mount, check=True)
        if self._link:
            self._link.make()
        try:
            yield
        finally:
            if self._link:
                self._link.remove()
            if self.outcome.problems:
                self._keep()
            subprocess.run(["umount", "--lazy", str(self._disk)], check=True)
            shutil.rmtree(self.folder)

    def _keep(self) -> None:
        """Leave all of the case where it outlives the mounts."""
        kept = Path(os.environ["DDTREE_FAULTS_KEPT"]) / str(self.outcome.seed)
        shutil.rmtree(kept, ignore_errors=True)
        ignore = shutil.ignore_patterns("ask")
        shutil.copytree(self.folder, kept, symlinks=True, ignore=ignore, ignore_dangling_symlinks=True)

    # the steps

    def _examine(self) -> None:
        root = os.fsencode(self._src)
        payload.make(root, self._rng)
        earlier = self._rng.random() < 0.5
        if earlier:
            self._deploy_earlier()
            payload.advance(root, self._rng)
        self._used_at_first = self._used_bytes()
        wanted = payload.snapshot(root)
        fault = draw(self.outcome.kind, self._rng, self._bytes_to_carry(wanted), self._path)
        self._victim = self._rng.choice((payload.LARGE, self._last_to_carry(wanted)))
        self.outcome.fault = f"{fault}, {'an earlier release' if earlier else 'no release'} there"
        run = self._stream("fault", "first", idle=fault.idle, faults=self._wire_faults(fault))
        self._watch(run, fault)
        if self._struck and fault.idle > SHORT_IDLE_S and time.monotonic() - self._struck > PROMPT_S:
            self._problem(f"the run ended only {time.monotonic() - self._struck:.0f} s after the fault")
        self._settle(run, fault)
        self._judge(run, fault)
        self._check_untouched("after the fault")
        after = payload.snapshot(root)
        self._whole = [payload.timeless(tree) for tree in (wanted, after)]
        self._check_releases()
        self._go_on(run, fault, after)

    def _deploy_earlier(self) -> None:
        run = self._stream("earlier", "earlier")
        self._watch(run)
        verdict = run.result().get("verdict", {})
        if verdict.get("failed", True):
            raise RuntimeError(f"no earlier release could be made: {run.result()} {run.said()}")
        self._dest.symlink_to(f"{self._store.name}/{verdict['release']}")
        self._before = self._committed()
        self._history = (self._store / "history.jsonl").read_bytes()

    def _stream(
        self,
        name: str,
        run_id: str,
        take_over: bool = False,
        idle: float = 60,
        faults: tuple[tuple[str, str], ...] = (),
    ) -> Run:
        prefixes = self._link.prefixes() if self._link else ()
        mark = f"{self.outcome.seed}-{name}"
        folder, src, dest = self.folder / name, str(self._src), str(self._dest)
        return Run(folder, mark, src, dest, run_id, take_over, idle, self._path, faults, prefixes)

    def _wire_faults(self, fault: Fault) -> tuple[tuple[str, str], ...]:
        moment = fault.moment
        if moment.how != "bytes":
            return ()
        what = fault.what if fault.by_wire else f"{ASKED}={self.folder / 'ask'}"
        return ((moment.host, f"{moment.direction}:{moment.number:.0f}:{what}"),)

    def _watch(self, run: Run, fault: Fault | None = None) -> None:
        """See a run through to its end, and make the fault when its moment has come."""
        with socket.socket(socket.AF_UNIX) as asked, contextlib.ExitStack() as lending:
            if fault:
                asked.bind(str(self.folder / "ask"))
                asked.listen()
            present = set(self._store.glob("?" * 16))
            began, lent = time.monotonic(), False
            process = run.start()
            while process.is_alive():
                if fault and not self._struck:
                    self._look_for_moment(run, fault, process, asked, time.monotonic() - began)
                else:
                    process.join(POLL_S)
                waits = bool(fault and self._struck and fault.idle == SHORT_IDLE_S)
                if not lent and (waits or set(self._store.glob("?" * 16)) - present):
                    lent = True
                    lending.enter_context(self._slots.lent())
                if time.monotonic() - began > RUN_LIMIT_S:  # more than any idle time
                    self._problem(f"the run {run.folder.name} hangs")
                    process.kill()
                    self._kill_marked(run.mark)
                    process.join()

    # the fault

    def _look_for_moment(
        self,
        run: Run,
        fault: Fault,
        process: multiprocessing.process.BaseProcess,
        asked: socket.socket,
        seconds: float,
    ) -> None:
        moment = fault.moment
        if select.select([asked], [], [], POLL_S)[0]:
            asker, _address = asked.accept()
            with asker:
                while not self._act(run, fault, process) and process.is_alive():
                    time.sleep(POLL_S)
            return
        due = {
            "bytes": lambda: fault.by_wire and run.report(moment.host).get("reached"),
            "time": lambda: seconds >= moment.number,
            "arrived": lambda: self._used_bytes() - self._used_at_first >= moment.number,
            "phase": lambda: self._phase() == moment.phase or self._phase() == "release",
        }[moment.how]
        if due():
            self._act(run, fault, process)

    def _act(self, run: Run, fault: Fault, process: multiprocessing.process.BaseProcess) -> bool:
        """Make the fault. Gives False while what it is to hit is not there yet."""
        reports = {host: run.report(host) for host in (SOURCE, TARGET)}
        host = {"sender": SOURCE, "receiver": TARGET}.get(fault.victim)
        if (host and not reports[host]) or (fault.victim == "control" and not all(reports.values())):
            return False
        self._struck = time.monotonic()
        self.outcome.phase = self._phase()
        self.outcome.passed_bytes = reports[TARGET].get("to", 0)
        if fault.by_wire:
            return True
        if fault.victim in ("relay", "control"):
            send_signal(os.kill, process.pid or 0, signal.Signals[fault.what])
            for wire in [report["wire"] for report in reports.values()] if fault.victim == "control" else []:
                send_signal(os.kill, wire, signal.SIGKILL)
        elif host:
            number = signal.SIGSTOP if fault.kind.startswith("stop") else signal.Signals[fault.what]
            send_signal(os.killpg, reports[host]["agent"], number)
        elif fault.victim == "disk":
            self._fill(fault.what)
        elif fault.victim == "file":
            self._change_source(fault.what)
        elif self._link:
            self._link.fail(fault.what, STALL_S)
        return True

    def _fill(self, what: str) -> None:
        """Leave nothing free on the target's disk, whatever the engine found free before."""
        for _unused in range(FILL_TRIES):
            st = os.statvfs(self._disk)
            used = f"size={(st.f_blocks - st.f_bfree) * st.f_frsize or 4096}"
            option = used if what == "blocks" else f"nr_inodes={st.f_files - st.f_ffree}"
            command = ["mount", "-o", f"remount,{option}", str(self._disk)]
            if not subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode:
                return
        raise RuntimeError("the disk could not be made full")

    def _change_source(self, what: str) -> None:
        path = self._src / os.fsdecode(self._victim)
        if what == "removed":
            path.unlink()
        elif what == "replaced":
            other = path.with_name("other")
            other.write_bytes(b"other" * 1000)
            other.rename(path)
        else:
            path.chmod(0o644)
            with open(path, "r+b") as file:
                if what == "cut short":
                    file.truncate(1 << 20)
                else:
                    file.seek(0, os.SEEK_END if what == "appended to" else os.SEEK_SET)
                    file.write(b"changed" * 1000)

    def _settle(self, run: Run, fault: Fault) -> None:
        """Undo what lasts of the fault, and see that nothing of the run lives on but what was cut off from it."""
        if fault.kind.startswith("stop"):
            agent = run.report(SOURCE if fault.victim == "sender" else TARGET).get("agent", 0)
            send_signal(os.killpg, agent, signal.SIGKILL if fault.what == "killed" else signal.SIGCONT)
        if fault.victim == "disk":
            subprocess.run(["mount", "-o", f"remount,{','.join(DISK)}", str(self._disk)], check=True)
        if self._link:
            self._link.mend()
        if fault.kind != "linger":
            self._wait_for_end(run)

    def _wait_for_end(self, run: Run) -> None:
        deadline = time.monotonic() + GRACE_S
        with self._slots.lent():
            while (left := marked(run.mark)) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        if left:
            names = [Path(f"/proc/{pid}/cmdline").read_bytes()[:60].replace(b"\0", b" ") for pid in left]
            self._problem(f"{len(left)} processes of the run {run.folder.name} live on: {names}")
            self._kill_marked(run.mark)

    def _kill_marked(self, mark: str) -> None:
        for pid in marked(mark or f"{self.outcome.seed}-"):
            send_signal(os.kill, pid, signal.SIGKILL)

    # what must be true after it

    def _judge(self, run: Run, fault: Fault) -> None:
        """Read what the relay said of the run, if it lived to say something."""
        result = run.result()
        verdict = result.get("verdict", {})
        if not self._struck:
            self._problem("the fault's moment never came")
        if "error" in result or verdict.get("failed"):
            self.outcome.came, self.outcome.msg = "failed", result.get("error") or verdict["msg"]
            if not SENTENCE.match(self.outcome.msg) or FOR_PROGRAMMERS.search(self.outcome.msg):
                self._problem("that is no message for people")
        elif verdict:
            self.outcome.came = "succeeded"
        else:
            self.outcome.came = "killed"
            if fault.victim not in ("relay", "control"):
                self._problem(f"the relay ended without a verdict: {end_of(run.said())}")
        name = self._victim.decode("utf-8", "backslashreplace") if fault.victim == "file" else fault.must_name
        if self.outcome.came == "failed" and name not in self.outcome.msg:
            self._problem(f"the message does not name {name}")
        if fault.must_succeed and self.outcome.came != "succeeded":
            self._problem("this fault should only delay")
        if "Traceback" in run.said():
            self._problem(f"somebody printed a traceback: {end_of(run.said())}")

    def _committed(self) -> payload.Snapshot:
        found = payload.snapshot(os.fsencode(self._store), [b"staging", b"history.jsonl"])
        if self._dest.is_symlink() or self._dest.exists():
            found[b"dest"] = payload.look(os.fsencode(self._dest))
        found.pop(b"meta", None)  # its modification time tells of what was added
        return found

    def _check_untouched(self, when: str) -> None:
        """What was committed before the fault is byte for byte what it was, and nothing new stands at dest."""
        now = self._committed()
        changed = payload.difference(self._before, {path: one for path, one in now.items() if path in self._before})
        if changed:
            self._problem(f"{when}, what was committed changed: {changed}")
        if b"dest" in now and b"dest" not in self._before:
            self._problem(f"{when}, something stands at dest: {now[b'dest']}")
        history = self._store / "history.jsonl"
        if not (history.read_bytes() if history.exists() else b"").startswith(self._history):
            self._problem(f"{when}, the history is not what it was")

    def _releases(self) -> list[bytes]:
        names = os.listdir(os.fsencode(self._store)) if self._store.exists() else []
        return [name for name in names if RELEASE.match(name)]

    def _check_releases(self) -> None:
        """A release that stands there since the fault is a tree that the source had, with metadata and manifest."""
        store = os.fsencode(self._store)
        for name in self._releases():
            if name in self._before:
                continue
            found = payload.timeless(payload.snapshot(os.path.join(store, name)))
            if found not in self._whole:
                self._problem(
                    f"release {name!r} is not the source's tree: {payload.difference(self._whole[-1], found)}"
                )
            for ending in (b".json", b".sha256"):
                if not os.path.exists(os.path.join(store, b"meta", name + ending)):
                    self._problem(f"release {name!r} has no {ending!r}")

    # the next run

    def _go_on(self, before: Run, fault: Fault, wanted: payload.Snapshot) -> None:
        run_id, take_over = self._next_run_id(fault)
        files, size = self._lacking(wanted)
        begun = self._begun(wanted)
        run = self._stream("next", run_id, take_over)
        with self._ending_later(before, run, fault):
            self._watch(run)
        self._wait_for_end(run)
        result = run.result()
        verdict = result.get("verdict", {})
        if verdict.get("failed", True):
            self._problem(f"the next run failed: {result.get('error') or verdict.get('msg') or end_of(run.said())}")
            return
        sent = f"{verdict['files_sent']} files {verdict['bytes_sent'] / 1e6:.1f} MB"
        self.outcome.after = f"next run sent {sent} of {files} lacking files {size / 1e6:.1f} MB"
        if begun:
            self.outcome.after += f", resumed after {verdict['bytes_resumed'] / 1e6:.1f} of {begun / 1e6:.1f} MB"
        if verdict["bytes_resumed"] < begun:
            self._problem("it began a large file again")
        if verdict["files_sent"] > files or verdict["bytes_sent"] > size:
            self._problem("it sent again what the target held")
        self._check_untouched("after the next run")
        self._check_releases()
        release = os.path.join(os.fsencode(self._store), verdict["release"].encode())
        changed = payload.difference(self._whole[-1], payload.timeless(payload.snapshot(release)))
        if changed:
            self._problem(f"the next run's release is not the source's tree: {changed}")
        self._check_tidy()

    def _next_run_id(self, fault: Fault) -> tuple[str, bool]:
        """Half of the next runs are the same run going on, the others another one, which takes a dead run's lock over."""
        held = self._lock.exists()
        killed = fault.kind == "kill-receiver" and fault.what == "SIGKILL"
        stopped = fault.kind == "stop-receiver" and fault.what == "killed"
        if held and not (killed or stopped or fault.kind == "linger"):
            self._problem(f"the lock stayed: {self._lock.read_bytes()!r}")
        return ("first", False) if self._rng.random() < 0.5 else ("second", held)

    @contextlib.contextmanager
    def _ending_later(self, before: Run, run: Run, fault: Fault) -> Iterator[None]:
        """A receiver that lost its network finds out while the next run is under way; that run's lock must outlive it."""
        if fault.kind != "linger":
            yield
            return
        ending = threading.Thread(target=self._end_linger, args=(before, run))
        ending.start()
        yield
        ending.join()
        self._wait_for_end(before)

    def _end_linger(self, before: Run, run: Run) -> None:
        deadline = time.monotonic() + RUN_LIMIT_S
        while run.report(TARGET).get("from", 0) <= FIRST_LINE_BYTES and time.monotonic() < deadline:
            time.sleep(POLL_S)  # an agent that has said more has its lock
        keeper = before.report(TARGET).get("keeper", 0)
        if keeper:
            send_signal(os.kill, keeper, signal.SIGKILL)
        while marked(before.mark) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if self._phase() == "staging" and not self._lock.exists():
            self._problem("an agent of the lost run took the next run's lock away")

    def _bytes_to_carry(self, wanted: payload.Snapshot) -> int:
        """How many bytes must pass whatever is done to make them less."""
        there = {one[4] for one in self._before.values()}
        content = {one[4]: one[2] for path, one in wanted.items() if one[0] == "f" and path != payload.TEXT}
        return sum(size for digest, size in content.items() if digest not in there)

    def _last_to_carry(self, wanted: payload.Snapshot) -> bytes:
        there = {one[4] for one in self._before.values()}
        return max(path for path, one in wanted.items() if one[0] == "f" and one[4] not in there)

    def _lacking(self, wanted: payload.Snapshot) -> tuple[int, int]:
        """Number and bytes of the contents that the target has not: in no release, and not at their path in staging."""
        there = {one[4] for one in self._committed().values() if one[0] == "f"}
        there |= {one[4] for path, one in self._staged(wanted) if wanted[path][4] == one[4]}
        lacking = {one[4]: one[2] for one in wanted.values() if one[0] == "f" and one[4] not in there}
        return len(lacking), sum(lacking.values())

    def _begun(self, wanted: payload.Snapshot) -> int:
        """How much of large files the target's staging holds the beginning of, in bytes."""
        total = 0
        for path, one in self._staged(wanted):
            if RESUMED_FROM <= one[2] < wanted[path][2]:
                with open(self._src / os.fsdecode(path), "rb") as file:
                    begins_so = hashlib.sha256(file.read(one[2])).digest() == one[4]
                total += one[2] if begins_so else 0
        return total

    def _staged(self, wanted: payload.Snapshot) -> Iterator[tuple[bytes, payload.Seen]]:
        """The files in staging by their path in the tree, wherever in staging the tree is."""
        for path, one in payload.snapshot(os.fsencode(self._store / "staging")).items():
            parts = path.split(b"/")
            for name in (b"/".join(parts[start:]) for start in range(len(parts))):
                if one[0] == "f" and name in wanted:
                    yield name, one

    def _check_tidy(self) -> None:
        """The store holds releases, what is known of them, and nothing else."""
        releases = self._releases()
        names = set(os.listdir(os.fsencode(self._store)))
        meta = set(os.listdir(os.fsencode(self._store / "meta")))
        extra = names - {*releases, b"meta", b"history.jsonl"}
        extra |= meta - {name + ending for name in releases for ending in (b".json", b".sha256")}
        if extra:
            self._problem(f"left in the store: {sorted(extra)}")
        events = [json.loads(line) for line in (self._store / "history.jsonl").read_text().splitlines()]
        known = {event["release"].encode() for event in events}
        if set(releases) - known:
            self._problem(f"the history does not tell of {sorted(set(releases) - known)}")

    # what is seen from outside

    def _phase(self) -> str:
        if set(self._releases()) - self._before.keys():
            return "release"
        if (self._store / "staging").exists():
            return "staging"
        return "lock" if self._lock.exists() else "start"

    def _used_bytes(self) -> int:
        st = os.statvfs(self._disk)
        return (st.f_blocks - st.f_bfree) * st.f_frsize


def end_of(said: str) -> str:
    """The last lines of what was printed, as one."""
    return " / ".join(line.strip() for line in said.splitlines() if line.strip(" ^~"))[-300:]


def marked(mark: str) -> list[int]:
    """The living processes whose environment bears a mark that starts so; those that only wait to be reaped do not count."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                environment = Path("/proc", name, "environ").read_bytes()
                if any(one.startswith(wanted) for one in environment.split(b"\0")):
                    found.append(int(name))
    return found


def send_signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        send(pid, number)
