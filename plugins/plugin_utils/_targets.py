# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is streamed, and the targets of a stream: the leg to each, what it lacks, and the verdict that it ends with."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._stream.fanout import Outlet
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import (
    BLOCK,
    PROTOCOL,
    Frame,
    Message,
    PeerError,
    from_runs,
)
from ansible_collections.ddtree.fleet.plugins.plugin_utils._board import Board
from ansible_collections.ddtree.fleet.plugins.plugin_utils._certificates import Credentials, make_pair
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._leg import Leg, LegError

CHANGES = ("added", "changed", "removed")


@dataclass(frozen=True)
class Request:
    """What to stream. ``src`` and ``dest`` are absolute paths; ``idle`` is how long a silent peer is waited for, in seconds.

    ``path`` is auto, relay or direct; ``topology`` auto, chain or star; ``compress`` auto, zstd or none; ``rate`` in bytes
    per second, 0 for any; ``ports`` the range that targets listen in for direct connections, 0 for any; ``streams`` the
    number of direct connections each, 0 for as many as the processors can use; ``addresses`` where the source finds a
    target, by host, before its own idea of it.
    """

    src: str
    dest: str
    exclude: Sequence[str]
    source: str
    full: bool
    repair: bool
    bytecode: bool
    check: bool
    run: str
    who: str
    take_over: bool
    idle: float
    seeds: Sequence[str] = ()
    link: bool = True
    compress: str = "auto"
    path: str = "relay"
    topology: str = "auto"
    ports: tuple[int, int] = (0, 0)
    streams: int = 0
    addresses: Mapping[str, str] = field(default_factory=dict)
    rate: int = 0
    ship: bool = False
    special: bool = False
    changes: bool = False
    interpreter: Sequence[str] = ()  # the paths that a base interpreter is known by, when that is what is streamed


@dataclass
class Verdict:
    """What came of one target. ``changed`` in check mode: whether a real run would change it."""

    host: str
    failed: bool = False
    changed: bool = False
    msg: str = ""
    notices: list[str] = field(default_factory=list)
    release: str = ""
    digest: str = ""
    installed_digest: str = ""
    path: str = ""
    topology: str = ""
    fed_by: str = ""
    rounds: int = 0
    compress: str = ""
    files_sent: int = 0
    bytes_sent: int = 0
    bytes_resumed: int = 0
    wire_bytes: int = 0
    mib_per_s: float = 0.0
    reused: dict[str, dict[str, int]] = field(default_factory=dict)
    origins: dict[str, dict[str, int]] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    relocated: dict[str, Any] = field(default_factory=dict)
    interpreter: str = ""
    interpreter_stream: dict[str, Any] = field(default_factory=dict)
    bytecode: dict[str, int] = field(default_factory=dict)
    peak_memory: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class Target:
    """One target's leg and what is known of it; every method may end in a failed verdict, never in an exception."""

    def __init__(self, endpoint: Endpoint, python: str) -> None:
        self.verdict = Verdict(endpoint.host)
        self.endpoint = endpoint
        self.python = python
        self.leg: Optional[Leg] = None
        self.unknown: set[int] = set()
        self.want: set[int] = set()
        self.partial: dict[int, list[Any]] = {}
        self.shipped = ""
        self.codec = ""
        self.processors = 1
        self.number = 0  # by which the ends of a stream name it; RELAY is no target's
        self.feeder = ""  # the host that content comes from, or relay
        self.arrived = 0  # bytes of content
        self.done = False  # the release is here
        self.why_short = ""  # why the last round brought less than it should
        self.watch: Callable[[Target, Message], None] = lambda target, progress: None
        self.outlet = Outlet()
        self.alone = False  # nobody else gets content through the relay, so that blocks need not wait in a queue
        self.ready = threading.Event()

    @property
    def alive(self) -> bool:
        return not self.verdict.failed

    @property
    def waits(self) -> bool:
        """Whether there is still something to be done for it."""
        return self.alive and not self.done

    @functools.cached_property
    def credentials(self) -> Credentials:
        """By which its neighbours know it."""
        return make_pair("target")

    def connected(self) -> Leg:
        if self.leg is None:
            raise LegError(f"{self.verdict.host}: there is no connection")
        return self.leg

    @contextlib.contextmanager
    def judged(self) -> Iterator[None]:
        try:
            yield
        except LegError as error:
            self.fail(str(error))
        except (ArithmeticError, AttributeError, KeyError, PeerError, TypeError, ValueError) as error:
            self.fail(f"{self.verdict.host}: the stream is corrupt: an answer lacks or garbles {error}")

    def fail(self, why: str) -> None:
        self.verdict.failed = True
        self.verdict.msg = self.verdict.msg or why
        self.outlet.fail()

    def note(self, notice: str) -> None:
        """Add a notice to the verdict, once."""
        if notice not in self.verdict.notices:
            self.verdict.notices.append(notice)

    def open(self, request: Request, board: Board, stack: contextlib.ExitStack) -> None:
        with self.judged():

            def heard(host: str, progress: Message) -> None:
                board.heard(host, progress)
                if progress["phase"] == "receive":
                    self.arrived = int(progress["bytes"])
                self.watch(self, progress)

            self.leg = stack.enter_context(Leg(self.endpoint, self.python, request.idle, heard))
            self.leg.tell(
                "open",
                protocol=PROTOCOL,
                dest=request.dest,
                interpreter=bool(request.interpreter),
                run=request.run,
                who=request.who,
                take_over=request.take_over,
                check=request.check,
                full=request.full,
                seeds=list(request.seeds),
                link=request.link,
                idle=request.idle,
            )

    def look(self, digest: str, repair: bool) -> None:
        """Learn whether the release is here already."""
        with self.judged():
            leg = self.connected()
            opened = leg.answer("opened")
            self.codec, self.processors = opened["codec"], int(opened["processors"])
            state = leg.ask("look", "state", digest=digest, repair=repair)
            self.verdict.release, self.verdict.digest = state["release"], digest
            self.verdict.changed = not state["present"]
            if state["present"]:
                self.verdict.installed_digest = state["installed"]
                leg.call_out("bye")

    def why_not(self, environment: dict[str, Any]) -> str:
        """Why the environment's interpreter does not do there, empty when it does."""
        with self.judged():
            return str(self.connected().ask("check", "checked", environment=environment)["why"])
        return ""

    def learn_unknown(self, entries: int) -> None:
        """Pass the directories' digests on as they arrive, then learn which of them the target does not know."""
        with self.judged():
            leg = self.connected()
            self._drain(leg)
            self.unknown = _numbers(leg.answer("unknown")["want"], entries + 1)

    def learn_need(self, entries: int) -> None:
        """Pass the listing on as it arrives, then learn what to send."""
        with self.judged():
            leg, verdict = self.connected(), self.verdict
            self._drain(leg)
            need = leg.answer("need")
            self.want = _numbers(need["want"], entries)
            self.partial = {number: _prefixes(found) for number, found in need["partial"]}
            verdict.files_sent, verdict.bytes_sent = len(self.want), int(need["bytes"])
            for name in ("reused", "origins", "links"):
                setattr(verdict, name, need[name])
            verdict.changes = _changes(need["changes"])
            verdict.notices += [f"{verdict.host}: there is no seed {seed}" for seed in need["missing_seeds"]]

    def build(self) -> None:
        """Have everything that is there already put into staging; nothing else is read there, however long it takes."""
        with self.judged():
            self.connected().ask("build", "built")

    def listen(self, request: Request, peer_certificate: str, streams: int) -> dict[str, Any]:
        """Have the target wait for who feeds it; gives what that one must know to connect, or the ``problem``. Raises LegError."""
        own = self.credentials
        answer = self.connected().ask(
            "listen",
            "listening",
            ports=list(request.ports),
            certificate=own.certificate,
            key=own.key,
            peer=peer_certificate,
            streams=streams,
            idle=request.idle,
        )
        if answer["problem"]:
            return {"problem": answer["problem"]}
        port = int(answer["port"])
        named = request.addresses.get(self.verdict.host)
        addresses = [named] if named else answer["addresses"]
        return {
            "sink": self.number,
            "port": port,
            "addresses": [[address, port] for address in addresses],
            "peer": own.certificate,
            "streams": streams,
        }

    def begin(self, direct: bool, after: list[int]) -> None:
        """Tell the target that a round of content comes, which it passes on to those ``after`` it."""
        with self.judged():
            verdict = self.verdict
            self.why_short = ""
            verdict.rounds += 1
            if verdict.files_sent:
                verdict.path, verdict.fed_by = "direct" if direct else "relay", self.feeder
            self.connected().tell("take", direct=direct, number=self.number, after=after)

    def take(self, direct: bool) -> None:
        """See the round that has begun through to this target, and its commit if it gets as far."""
        if not self.alive:
            return
        with self.judged():
            leg, verdict = self.connected(), self.verdict
            self.ready.set()
            passing = threading.Thread(target=self._pass_on, args=(leg,), daemon=True)
            passes = not direct and not self.alone
            if passes:
                passing.start()
            try:  # read while content is passed on, so that neither end waits for the other
                done = leg.answer("committed", "short")
            except LegError:
                self.outlet.fail()
                raise
            if passes:
                passing.join()
            self.ready.clear()
            verdict.wire_bytes += done["wire"]
            verdict.peak_memory = done["peak_memory"]
            if done["op"] == "short":
                self.why_short = str(done["why"])
                self.want = set(from_runs(done["want"], max(self.want, default=0) + 1))
                self.partial = {number: _prefixes(found) for number, found in done["partial"]}
                return
            verdict.installed_digest, verdict.relocated = done["installed"], done["relocated"]
            verdict.bytecode, verdict.seconds, verdict.reused = done["bytecode"], done["seconds"], done["reused"]
            verdict.bytes_resumed = done["resumed"]
            seconds = verdict.seconds.get("receive", 0.0)
            verdict.mib_per_s = round(verdict.bytes_sent / (1 << 20) / seconds, 1) if seconds else 0.0
            self.done = True  # whatever becomes of the connection now
            leg.call_out("bye")

    def _pass_on(self, leg: Leg) -> None:
        with self._writing():
            self.outlet.drain(leg.channel.send_frame)
            leg.channel.flush()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Give a target up that takes nothing, since it may say that it lives all the while."""
        try:
            yield
        except PeerError as error:
            self._give_up(f"{self.verdict.host}: {error}")
        except (OSError, ValueError):  # the other thread hears what the target says of it
            pass

    def _drain(self, leg: Leg) -> None:
        with leg.named():
            self.outlet.drain(leg.channel.send_frame)
            leg.channel.flush()

    def waited_for(self) -> tuple[float, int, float]:
        """What this process has seen of it as its feeder: seconds waited, bytes taken, and the most taken in a second."""
        leg, taken = self.connected(), self.outlet.taken
        return (leg.waited, leg.channel.sent, 0.0) if self.alone else (self.outlet.blocked, taken.bytes, taken.best)

    def put(self, frame: Optional[Frame]) -> None:
        """Pass a frame on, None after the last: by way of the queue, or at once when there is nobody else to wait for."""
        if not self.alone:
            self.outlet.put(frame)
        elif frame and self._is_ready():
            with self._writing():
                self.connected().channel.send_frame(*frame)
                self.connected().channel.flush()

    def put_block(self, source: Leg, length: int) -> None:
        """Pass the block whose header the source has just sent on within the kernel, or drop it when the target is gone.

        Raises LegError when the source fails.
        """
        if not self._is_ready():
            with source.named():
                source.channel.receive_content(BLOCK, length)
            return
        with self._writing():
            source.pass_on(self.connected(), BLOCK, length)

    def _is_ready(self) -> bool:
        """Wait until the target reads content; gives False when it does not wait for any."""
        while self.waits and not self.ready.wait(0.2):
            pass
        return self.waits

    def abandon(self) -> None:
        """End the agent, whatever its thread waits for; what it has staged stays for the next run."""
        self._give_up(f"{self.verdict.host}: the stream was abandoned")

    def _give_up(self, why: str) -> None:
        self.fail(why)
        if self.leg:
            self.leg.kill()


def _numbers(asked: Any, below: int) -> set[int]:
    """What a target asks for by its places in the listing; raises ValueError or TypeError for anything else."""
    numbers = set(asked)
    if not all(isinstance(number, int) and 0 <= number < below for number in numbers):
        raise ValueError("want")
    return numbers


def _prefixes(found: Any) -> list[Any]:
    """The lengths and hashes of what a target has of a file; raises ValueError or TypeError for anything else."""
    if not all(isinstance(length, int) and isinstance(sha256, str) for length, sha256 in found):
        raise ValueError("partial")
    return list(found)


def _changes(found: Any) -> dict[str, Any]:
    """What a target says would change, nothing where it was not asked; raises ValueError or TypeError for anything else."""
    if not found:
        return {}
    lists = [found[kind] for kind in CHANGES]
    counts = [found["counts"][kind] for kind in CHANGES]
    sizes = found["sizes"].values()
    texts = [found["against"], *found["sizes"], *itertools.chain.from_iterable(lists)]
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(one, int) for one in [*counts, *sizes]):
        raise ValueError("changes")
    return dict(found)
