# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server gate: is the running unit the patched server, does it generate, and does speculation really happen?

HTTP is done by a program in the release's own interpreter (requests comes with the release) while this side watches
the unit, so that a server that dies or is restarted ends the gate at once. What the answers mean, verdict.py says.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils import _listeners as listeners
from ansible_collections.ddtree.fleet.plugins.module_utils import _systemd
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import (
    baseline,
    metrics,
    replies,
    server_client,
    speculation,
    verdict,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError, GateResult
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.log import log_checks
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.program import (
    Outcome,
    cleaning_up_on_signals,
    run_program,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.server_options import ServerOptions
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check, failures

_GENERATED = (replies.GENERATE, replies.STREAM, replies.CONCURRENT)
SIMULATED = "SGLANG_SIMULATE_ACC_LEN"
# Seconds that systemd may need to notice that a process is gone.
SETTLE_SECONDS = 2.0
# The client bounds each step itself; this much later it is ended for hanging as a whole.
CLIENT_GRACE = 15.0
# What reading the journal may take when the requests have used up their time.
LEAST_JOURNAL_SECONDS = 10.0


def run(options: ServerOptions) -> GateResult:
    options.check()
    recorded = _Recorded(options) if options.baseline != baseline.NONE else None
    try:
        with cleaning_up_on_signals():
            return _Gate(options, recorded).run()
    except _systemd.SystemdError as error:
        raise GateError(str(error)) from None


class _Gate:
    def __init__(self, options: ServerOptions, recorded: Optional[_Recorded]) -> None:
        self._options = options
        self._recorded = recorded
        self._plan = options.plan()
        self._redactor = Redactor([options.api_key])
        self._result = GateResult(subject=f"{options.unit} at {options.url}")
        self._first = _systemd.show(options.unit)
        self._down = self._first.down(fresh=options.fresh)
        self._ready: Optional[float] = None
        self._waiting = ""
        self._refused = ""
        self._locked = ""
        self._done = False
        self._late = False
        self._until = 0.0
        self._replies: List[replies.Reply] = []

    def run(self) -> GateResult:
        """Wait, prove that the unit's own process answers, and only then send it requests and the key."""
        waited = None if self._down else self._wait()
        self._until = time.monotonic() + self._options.gate_timeout
        if self._down:
            self._judge_unit()
        else:
            self._judge_ready(waited)
        if self._ready is not None and not self._down:
            self._judge_simulation()
            if self._judge_holder():
                self._ask()
        if not self._replies:
            self._result.not_verified.append("generations, speculation and server_info: no request was answered")
        self._judge_log()
        self._judge_speed()
        self._result.figures["verdict_time"] = round(time.time(), 3)
        return self._result

    def _wait(self) -> Outcome:
        """Until the server is ready. One that has a key and a base path answers /health to those who have the key only."""
        started = time.monotonic()
        waited = self._talk("wait", self._options.ready_timeout + server_client.HEALTH_SECONDS)
        self._watch()
        if not self._locked or self._down:
            return waited
        if not self._options.api_key or self._foreign_holders():
            self._refused = self._locked
            return waited
        locked = time.monotonic() - started
        waited = self._talk("wait", self._options.ready_timeout + server_client.HEALTH_SECONDS, with_key=True)
        self._watch()
        if self._ready is not None:
            self._ready = round(self._ready + locked, 2)
        return waited

    def _ask(self) -> None:
        outcome = self._talk("ask", self._options.gate_timeout + CLIENT_GRACE, with_key=True)
        self._look_again(outcome)
        self._judge_unit()
        late = self._late or outcome.timed_out
        if late:
            expected = f"all requests within {self._options.gate_timeout} s"
            generated = sum(reply.kind in _GENERATED for reply in self._replies)
            found = f"{generated} of {self._plan.size} generations and then no time left"
            self._result.checks.append(Check("gate_timeout", False, expected, found))
        if self._down:
            # That no reply came is no finding of its own then.
            self._replies = [reply for reply in self._replies if reply.status is not None]
        if self._replies:
            broken_off = "" if self._done else "not asked after a request broke off"
            broken_off = "the unit went down" if self._down else "gate_timeout" if late else broken_off
            verdict.judge(self._options, self._plan, self._replies, broken_off, self._result)
        elif not self._down and not late:
            found = self._refused or f"the HTTP client of {self._options.python}: {outcome.ending()}"
            hint = " | ".join(outcome.output[-5:])
            self._result.checks.append(Check("generations answered", False, "replies", found, hint))

    def _talk(self, phase: str, limit: float, with_key: bool = False) -> Outcome:
        options = self._options
        return run_program(
            [options.python, "-B"],
            server_client,
            {
                "phase": phase,
                "url": options.url,
                "api_key": options.api_key if with_key else "",
                "ca_file": options.ca_file,
                "validate_certs": options.validate_certs,
                "ready_timeout": options.ready_timeout,
                "request_timeout": options.request_timeout,
                "gate_timeout": options.gate_timeout,
                "sequential": self._plan.sequential,
                "concurrent": self._plan.concurrent,
                "chat_prompt": options.prompts[0],
                "max_new_tokens": options.max_new_tokens,
                "counters": metrics.GRAPH_PASSES,
            },
            {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            limit,
            self._answer,
            self._watch,
            redactor=self._redactor,
        )

    def _answer(self, answer: Dict[str, Any]) -> None:
        if "ready" in answer:
            self._ready = answer["ready"]
        elif "waiting" in answer:
            self._waiting = answer["waiting"]
        elif "locked" in answer:
            self._locked = answer["locked"]
        elif "refused" in answer:
            self._refused = answer["refused"]
        elif "reply" in answer:
            known = replies.Reply.__dataclass_fields__
            self._replies.append(
                replies.Reply(**{name: value for name, value in answer["reply"].items() if name in known})
            )
        elif "late" in answer:
            self._late = True
        elif "done" in answer:
            self._done = True

    def _watch(self) -> bool:
        self._down = _systemd.show(self._options.unit).down(self._first, self._options.fresh)
        return not self._down

    def _look_again(self, outcome: Outcome) -> None:
        """The unit's state at the end; where a request broke off, systemd gets a moment to say that the server died."""
        broken = not self._done or any(reply.status is None for reply in self._replies)
        until = time.monotonic() + (SETTLE_SECONDS if broken and not outcome.stopped else 0.0)
        while self._watch() and time.monotonic() < until:
            time.sleep(0.3)

    def _judge_unit(self) -> None:
        expected = "active in one invocation to the end"
        if not self._down:
            self._result.checks.append(Check(f"unit {self._options.unit}", True, expected, "active"))
            return
        self._result.journal = self._journal()
        holders = self._foreign_holders()
        hint = f"port {self._options.port} is held by {self._named(holders)}" if holders else ""
        self._result.checks.append(Check(f"unit {self._options.unit}", False, expected, self._down, hint))

    def _judge_ready(self, outcome: Optional[Outcome]) -> None:
        expected = f"/health answers 200 within {self._options.ready_timeout} s"
        if self._ready is not None:
            self._result.figures["ready_seconds"] = self._ready
            self._result.checks.append(Check("ready", True, expected, f"after {self._ready} s"))
            return
        self._result.journal = self._journal()
        found, hint = self._refused or self._waiting or "no answer", ""
        holders = self._foreign_holders()
        if holders:
            hint = f"port {self._options.port} is held by {self._named(holders)}, which is not of {self._options.unit}"
        elif outcome is not None and outcome.returncode != 0 and not outcome.timed_out:
            found = f"the HTTP client of {self._options.python}: {outcome.ending()}"
            hint = " | ".join(outcome.output[-5:])
        self._result.checks.append(Check("ready", False, expected, found, hint))

    def _judge_holder(self) -> bool:
        """The socket that answers belongs to the unit's control group; false when it is known to be another's."""
        url, unit, port = self._options.url, self._options.unit, self._options.port
        if self._options.behind_proxy:
            self._result.not_verified.append(f"that {url} leads to {unit}: behind_proxy is true")
            return True
        found = listeners.listeners(self._options.host, port)
        if not found or not self._first.control_group or not all(listener.holders for listener in found):
            self._result.not_verified.append(f"that {url} is served by {unit}: no readable listening socket here")
            return True
        foreign = self._foreign_holders()
        held = self._named(foreign or [holder for listener in found for holder in listener.holders])
        hint = "that process answers instead of the server; stop it, set another port, or behind_proxy if it is a proxy"
        self._result.checks.append(
            Check(f"listening on port {port}", not foreign, f"a process of {unit}", held, hint if foreign else "")
        )
        return not foreign

    def _foreign_holders(self) -> List[listeners.Holder]:
        group = self._first.control_group
        found: List[listeners.Holder] = []
        if self._options.behind_proxy:
            return found
        for listener in listeners.listeners(self._options.host, self._options.port):
            if not group or not any(holder.inside(group) for holder in listener.holders):
                found += listener.holders
        return found

    def _named(self, holders: List[listeners.Holder]) -> str:
        return ", ".join(f"pid {holder.pid} ({holder.named(self._redactor)})" for holder in holders)

    def _journal(self) -> List[str]:
        return _systemd.journal(self._options.unit, self._first.invocation, self._redactor)

    def _judge_simulation(self) -> None:
        found = _systemd.variable(_systemd.show(self._options.unit), SIMULATED)
        said = "; ".join(f"{value} in {place}" for place, value in found.settings.items())
        hint = "it makes up the accept length; remove it" if said else ""
        self._result.checks.append(Check(SIMULATED, not said, "not set", said or "not set", hint))
        if found.unread:
            self._result.not_verified.append(f"{SIMULATED} in {', '.join(found.unread)}")

    def _judge_log(self) -> None:
        wanted = self._options.log_expect
        if not wanted:
            return
        if self._down or not self._replies:
            why = "the unit went down" if self._down else "the server was not asked"
            self._result.not_verified.append(f"{len(wanted)} log expectations: {why}")
            return
        seconds = max(self._until - time.monotonic(), LEAST_JOURNAL_SECONDS)
        try:
            lines = _systemd.journal_lines(self._options.unit, self._first.invocation, seconds)
            self._result.checks += log_checks(wanted, lines, self._redactor)
        except _systemd.SystemdError as error:
            self._result.checks.append(
                Check("log_expect", False, "the journal of this invocation, to its end", str(error))
            )

    def _judge_speed(self) -> None:
        if self._recorded is not None:
            self._recorded.judge(self._result)
        else:
            self._result.not_verified.append("speed against a baseline: baseline is none")


class _Recorded:
    """The host's recorded speeds, opened before anything is measured so that a damaged file is said at once."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._file = baseline.BaselineFile(options.baseline_file)
        if options.baseline == baseline.RECORD:
            self._file.check_writable()
        self._hardware = baseline.hardware()

    def judge(self, result: GateResult) -> None:
        """Compare, or record what passed everything else; and say how much faster than plain decoding it is."""
        info = result.details.get("server_info")
        if not info or "tokens_per_second" not in result.figures:
            result.not_verified.append("speed against a baseline: there are no figures, or no server_info")
            return
        options = self._options
        work = baseline.workload(options.prompts, options.max_new_tokens, options.concurrent)
        configuration = baseline.configuration(info, self._hardware, work)
        if options.baseline == baseline.COMPARE:
            self._compare(configuration, result)
        else:
            self._record(configuration, str(info.get("version")), result)
        if options.speculation != speculation.ABSENT and configuration["speculative"]:
            speedup = baseline.speedup(result.figures, self._file.plain(configuration))
            result.figures["speedup"] = speedup
            if speedup is None:
                result.not_verified.append("speed-up over plain decoding: none was recorded for this configuration")

    def _compare(self, configuration: Dict[str, Any], result: GateResult) -> None:
        entry = self._file.find(configuration)
        result.checks += baseline.compared(result.figures, entry, self._options.baseline_tolerance)
        if entry is not None:
            result.figures["baseline"] = {**entry.figures, "recorded": entry.recorded, "version": entry.version}

    def _record(self, configuration: Dict[str, Any], version: str, result: GateResult) -> None:
        if failures(result.checks):
            result.not_verified.append("baseline: not recorded, since the gate did not pass")
            return
        figures = {name: result.figures.get(name) for name in baseline.FIGURES}
        entry = baseline.Entry(configuration, figures, round(time.time(), 3), version)
        self._file.put(entry, write=not self._options.check_mode)
        result.changed = True
        result.figures["baseline"] = {**entry.figures, "recorded": entry.recorded, "version": entry.version}
