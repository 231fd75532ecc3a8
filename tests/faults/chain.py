# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One fault along a chain of targets: those that it does not hit get their release, and the next stream heals those that it did."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import payload
from case import (
    DISK,
    FOR_PROGRAMMERS,
    GRACE_S,
    POLL_S,
    RELEASE,
    RUN_LIMIT_S,
    Outcome,
    Slots,
    end_of,
    marked,
    send_signal,
)
from engine import SOURCE, Run
from kinds import AGENT_BYTES, FIRST_LINE_BYTES, LONG_IDLE_S, SHORT_IDLE_S
from switch import Switch

TARGETS = ("b", "c", "d", "e")
AT = "/mnt"  # where every target has its own disk
EARLY = 0.15  # of the faults come within the first moments instead of while content arrives
EARLY_S = 0.4
FILL_TRIES = 200
# What happens, and to which places of the chain; None: to any one.
CHAIN_KINDS: dict[str, tuple[str, tuple[int, ...] | None]] = {
    "kill-head": ("kill", (0,)),
    "kill-middle": ("kill", (1,)),
    "kill-tail": ("kill", (3,)),
    "kill-two": ("kill", (1, 2)),
    "kill-others": ("kill", (0, 2)),
    "stop-middle": ("stop", (2,)),
    "unplug": ("unplug", None),
    "reset": ("reset", None),
    "disk-full": ("fill", (1,)),
    "flip": ("flip", None),
    "kill-source": ("kill-source", ()),
    "kill-relay": ("kill-relay", ()),
}
SPARED = ("reset",)  # what the stream must get over for everybody
FATAL = ("kill-source", "kill-relay")  # what ends the stream for everybody


class ChainCase:
    """A fault in a folder of its own, where the targets' file systems are mounted."""

    def __init__(self, seed: int, kind: str, path: str, work: Path, slots: Slots) -> None:
        self.outcome = Outcome(seed, kind)
        self.folder = work / str(seed)
        self._rng = random.Random(seed)
        self._path = path or self._rng.choice(("direct", "relay"))
        self._slots = slots
        self._what, places = CHAIN_KINDS[kind]
        places = (self._rng.randrange(len(TARGETS)),) if places is None else places
        self._victims = [TARGETS[place] for place in places]
        self._switch = Switch(seed, [SOURCE, *TARGETS])
        self._src = self.folder / "src"
        self._early = self._rng.random() < EARLY
        self._moment = self._rng.uniform(0.0, 1.0)
        self._struck = False

    def run(self) -> Outcome:
        with self._slots.taken(), self._mounted():
            try:
                self._examine()
            except Exception as error:
                self._problem(f"the test itself failed: {type(error).__name__}: {error}")
                self._kill_marked()
        return self.outcome

    def _problem(self, text: str) -> None:
        self.outcome.problems.append(text)

    def _disk(self, host: str) -> Path:
        return self.folder / f"disk-{host}"

    def _store(self, host: str) -> Path:
        return self._disk(host) / "root" / "venv.releases"

    @contextlib.contextmanager
    def _mounted(self) -> Iterator[None]:
        for host in TARGETS:
            self._disk(host).mkdir(parents=True)
            options = ["-o", ",".join(DISK), "ddtree-faults", str(self._disk(host))]
            subprocess.run(["mount", "-t", "tmpfs", *options], check=True)
            for name in ("root", "cache"):
                (self._disk(host) / name).mkdir()
        self._switch.make()
        try:
            yield
        finally:
            self._switch.remove()
            if self.outcome.problems:
                kept = Path(os.environ["DDTREE_FAULTS_KEPT"]) / f"chain-{self.outcome.seed}"
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(self.folder, kept, symlinks=True, ignore_dangling_symlinks=True)
            for host in TARGETS:
                subprocess.run(["umount", "--lazy", str(self._disk(host))], check=True)
            shutil.rmtree(self.folder)

    # the steps

    def _examine(self) -> None:
        root = os.fsencode(self._src)
        payload.make(root, self._rng)
        wanted = payload.timeless(payload.snapshot(root))
        when = "early" if self._early else f"{self._moment:.0%} arrived"
        self.outcome.fault = f"{self.outcome.kind} ({', '.join(self._victims) or 'all'}) at {when}, path {self._path}"
        hangs = self._what in ("stop", "unplug")
        run = self._stream("fault", "first", SHORT_IDLE_S if hangs else LONG_IDLE_S)
        self._watch(run, sum(one[2] for one in wanted.values() if one[0] == "f"))
        self._settle(run)
        self._judge(run, wanted)
        self._go_on(wanted)

    def _stream(self, name: str, run_id: str, idle: float) -> Run:
        prefixes = {host: self._switch.prefix(host) for host in (SOURCE, *TARGETS)}
        for host in TARGETS:
            own = 'mount --bind "$0/root" /mnt; mount --bind "$0/cache" /var/cache; exec "$@"'
            prefixes[host] += ("unshare", "--mount", "sh", "-ec", own, str(self._disk(host)))
        faults: tuple[tuple[str, str], ...] = ()
        if name == "fault" and self._what == "flip":
            number = FIRST_LINE_BYTES + self._rng.randrange(1, 200)
            direction, start = self._rng.choice((("to", AGENT_BYTES), ("from", 0)))
            faults = ((self._victims[0], f"{direction}:{start + number}:flip"),)
        return Run(
            self.folder / name,
            f"{self.outcome.seed}-{name}",
            str(self._src),
            f"{AT}/venv",
            run_id,
            take_over=name != "fault",
            idle=idle,
            path=self._path,
            faults=faults,
            prefixes=tuple(prefixes.items()),
            targets=TARGETS,
            topology="chain",
        )

    def _watch(self, run: Run, size: int) -> None:
        """See a run through to its end, and make the fault when its moment has come."""
        began = time.monotonic()
        process = run.start()
        watched = (self._victims or TARGETS)[0]
        with contextlib.ExitStack() as lending:
            while process.is_alive():
                seconds = time.monotonic() - began
                if run.folder.name == "fault" and not self._struck:
                    due = (
                        seconds > EARLY_S * self._moment
                        if self._early
                        else self._used(watched) > 0.9 * size * self._moment
                    )
                    if due and all(run.report(host) for host in (SOURCE, *TARGETS)):
                        self._act(run, process.pid or 0)
                        if self._what in ("stop", "unplug"):
                            lending.enter_context(self._slots.lent())
                process.join(POLL_S)
                if seconds > RUN_LIMIT_S:
                    self._problem(f"the run {run.folder.name} hangs")
                    self._kill_marked()
                    process.kill()
                    process.join()

    def _used(self, host: str) -> int:
        st = os.statvfs(self._disk(host))
        return (st.f_blocks - st.f_bfree) * st.f_frsize

    def _act(self, run: Run, relay: int) -> None:
        self._struck = True
        for host in self._victims:
            if self._what in ("kill", "stop"):
                number = signal.SIGSTOP if self._what == "stop" else signal.SIGKILL
                send_signal(os.killpg, run.report(host)["agent"], number)
            elif self._what in ("unplug", "reset"):
                self._switch.fail(host, self._what)
            elif self._what == "fill":
                self._fill(host)
        if self._what == "kill-source":
            send_signal(os.killpg, run.report(SOURCE)["agent"], signal.SIGKILL)
        elif self._what == "kill-relay":
            send_signal(os.kill, relay, signal.SIGKILL)

    def _fill(self, host: str) -> None:
        for _unused in range(FILL_TRIES):
            command = ["mount", "-o", f"remount,size={self._used(host) or 4096}", str(self._disk(host))]
            if not subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode:
                return
        raise RuntimeError("the disk could not be made full")

    def _settle(self, run: Run) -> None:
        """Undo what lasts of the fault, and see that nothing of the run lives on."""
        for host in self._victims:
            if self._what == "stop":
                send_signal(os.killpg, run.report(host).get("agent", 0), signal.SIGCONT)
            elif self._what == "fill":
                subprocess.run(["mount", "-o", f"remount,{','.join(DISK)}", str(self._disk(host))], check=True)
            self._switch.mend(host)
        deadline = time.monotonic() + GRACE_S
        with self._slots.lent():
            while (left := marked(run.mark)) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        if left:
            self._problem(f"{len(left)} processes of the run {run.folder.name} live on")
            self._kill_marked()

    def _kill_marked(self) -> None:
        for pid in marked(f"{self.outcome.seed}-"):
            send_signal(os.kill, pid, signal.SIGKILL)

    # what must be true

    def _judge(self, run: Run, wanted: payload.Snapshot) -> None:
        result = run.result()
        verdicts = result.get("verdicts", {})
        failed = {host: verdict["msg"] for host, verdict in verdicts.items() if verdict["failed"]}
        said = [result["error"]] if "error" in result else list(failed.values())
        self.outcome.msg = " / ".join(said)
        self.outcome.came = "succeeded" if verdicts and not failed else "failed" if result else "killed"
        if "rounds" in result.get("tree", {}):
            self.outcome.msg += f" in {result['tree']['rounds']} rounds"
        if not self._struck and self._what != "flip":
            self._problem("the fault's moment never came")
        if any("\n" in text or FOR_PROGRAMMERS.search(text) for text in said):
            self._problem("that is no message for people")
        if "Traceback" in run.said():
            self._problem(f"somebody printed a traceback: {end_of(run.said())}")
        if not verdicts and self._what not in FATAL:
            self._problem(f"there is no verdict: {result.get('error') or end_of(run.said())}")
        hit = set() if self._what in SPARED else set(self._victims)
        if set(failed) - hit:
            self._problem(f"others failed, too: {sorted(set(failed) - hit)}")
        for host in TARGETS:
            self._check_release(host, wanted, bool(verdicts) and host not in failed)

    def _check_release(self, host: str, wanted: payload.Snapshot, must: bool) -> None:
        """What stands there is the source's tree or nothing at all."""
        store = os.fsencode(self._store(host))
        names = [name for name in (os.listdir(store) if os.path.exists(store) else []) if RELEASE.match(name)]
        if must and not names:
            self._problem(f"{host} has no release")
        for name in names:
            found = payload.timeless(payload.snapshot(os.path.join(store, name)))
            if found != wanted:
                self._problem(f"the release of {host} is not the source's tree: {payload.difference(wanted, found)}")
        if os.path.lexists(self._disk(host) / "root" / "venv"):
            self._problem(f"something stands at dest of {host}")

    def _go_on(self, wanted: payload.Snapshot) -> None:
        size = sum(one[2] for one in wanted.values() if one[0] == "f")
        run = self._stream("next", "second", LONG_IDLE_S)
        self._watch(run, size)
        self._settle(run)
        result = run.result()
        verdicts = result.get("verdicts", {})
        bad = {host: verdict["msg"] for host, verdict in verdicts.items() if verdict["failed"]}
        if bad or not verdicts:
            self._problem(f"the next run failed: {bad or result.get('error') or end_of(run.said())}")
            return
        sent = sum(verdict["bytes_sent"] - verdict["bytes_resumed"] for verdict in verdicts.values())
        self.outcome.after = f"next run sent {sent / 1e6:.1f} of {len(TARGETS) * size / 1e6:.1f} MB"
        for host in TARGETS:
            self._check_release(host, wanted, True)
            extra = {path.name for path in self._store(host).iterdir()} - {"meta", "history.jsonl"}
            if any(not RELEASE.match(name.encode()) for name in extra):
                self._problem(f"left in the store of {host}: {sorted(extra)}")
