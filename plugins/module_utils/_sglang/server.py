# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server gate: is the running unit the patched server, does it generate, and does speculation really happen?

HTTP is done by a program in the release's own interpreter (requests comes with the release) while this side watches
the unit, so that a server that dies or is restarted ends the gate at once.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional
from urllib.parse import urlsplit

from ansible_collections.ddtree.fleet.plugins.module_utils import _listeners as listeners
from ansible_collections.ddtree.fleet.plugins.module_utils import _systemd
from ansible_collections.ddtree.fleet.plugins.module_utils._secrets import Redactor
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import replies, server_client
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError, GateResult
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.program import (
    Outcome,
    cleaning_up_on_signals,
    run_program,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

SIMULATED = "SGLANG_SIMULATE_ACC_LEN"
# Seconds that systemd may need to notice that a process is gone.
SETTLE_SECONDS = 2.0
SERVER_FIELDS = (
    "version",
    "model_path",
    "served_model_name",
    "device",
    "tp_size",
    "ep_size",
    "pp_size",
    "dp_size",
    "attention_backend",
    "disable_cuda_graph",
    "enable_nccl_nvls",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_draft_tokens",
    "speculative_dflash_block_size",
    "speculative_dflash_draft_window_size",
    "speculative_ddtree_budget",
    "speculative_ddtree_topk_cap",
)


@dataclass(frozen=True)
class ServerOptions:
    """The server gate's parameters, as the module documents them; ``api_key`` is the key itself or empty."""

    unit: str
    url: str
    python: str
    ready_timeout: int
    request_timeout: int
    api_key: str
    prompts: List[str]
    max_new_tokens: int
    speculation: str
    min_accept_length: Optional[float]
    min_accept_rate: Optional[float]
    model_path: str
    fresh: bool


def run(options: ServerOptions) -> GateResult:
    port = _checked_port(options.url)
    if options.speculation != replies.ABSENT and options.max_new_tokens < replies.JUDGED_TOKENS:
        raise GateError(
            f"max_new_tokens is {options.max_new_tokens}; "
            f"below {replies.JUDGED_TOKENS} no reply says anything about speculation"
        )
    if not options.prompts:
        raise GateError("prompts is empty; the server gate needs at least one")
    try:
        with cleaning_up_on_signals():
            return _Gate(options, port).run()
    except _systemd.SystemdError as error:
        raise GateError(str(error)) from None


class _Gate:
    def __init__(self, options: ServerOptions, port: int) -> None:
        self._options = options
        self._port = port
        self._redactor = Redactor([options.api_key])
        self._result = GateResult(subject=f"{options.unit} at {options.url}")
        # The first prompt twice, to see that temperature 0 repeats itself.
        self._prompts = [options.prompts[0], *options.prompts]
        self._first = _systemd.show(options.unit)
        self._down = self._first.down(fresh=options.fresh)
        self._ready: Optional[float] = None
        self._waiting = ""
        self._refused = ""
        self._done = False
        self._replies: List[replies.Reply] = []

    def run(self) -> GateResult:
        """Wait, prove that the unit's own process answers, and only then send it requests and the key."""
        waited = None
        if not self._down:
            waited = self._talk("wait", float(self._options.ready_timeout))
            self._watch()
        if self._down:
            self._judge_unit()
        else:
            self._judge_ready(waited)
        if self._ready is not None and not self._down:
            self._judge_simulation()
            if self._judge_holder():
                self._ask()
        self._list_unverified()
        return self._result

    def _ask(self) -> None:
        limit = (len(self._prompts) + 3) * self._options.request_timeout
        outcome = self._talk("ask", float(limit))
        self._look_again(outcome)
        self._judge_unit()
        if not self._replies and not self._down:
            found = self._refused or f"the HTTP client of {self._options.python}: {outcome.ending()}"
            self._result.checks.append(
                Check("generations answered", False, "replies", found, " | ".join(outcome.output[-5:]))
            )
        else:
            self._judge_replies()

    def _talk(self, phase: str, limit: float) -> Outcome:
        options = self._options
        return run_program(
            [options.python, "-B"],
            server_client,
            {
                "phase": phase,
                "url": options.url,
                "api_key": options.api_key if phase == "ask" else "",
                "ready_timeout": options.ready_timeout,
                "request_timeout": options.request_timeout,
                "prompts": self._prompts,
                "chat_prompt": options.prompts[0],
                "max_new_tokens": options.max_new_tokens,
            },
            {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            # The client bounds each step itself; this is for a client that hangs as a whole.
            limit + 60.0,
            self._answer,
            self._watch,
        )

    def _answer(self, answer: Dict[str, Any]) -> None:
        if "ready" in answer:
            self._ready = answer["ready"]
        elif "waiting" in answer:
            self._waiting = answer["waiting"]
        elif "refused" in answer:
            self._refused = answer["refused"]
        elif "reply" in answer:
            fields = {name: answer["reply"].get(name) for name in replies.Reply.__dataclass_fields__}
            self._replies.append(replies.Reply(**{**fields, "number": fields["number"] or 0}))
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
        hint = f"port {self._port} is held by {self._named(holders)}" if holders else ""
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
            hint = f"port {self._port} is held by {self._named(holders)}, which is not of {self._options.unit}"
        elif outcome is not None and outcome.returncode != 0 and not outcome.timed_out:
            found = f"the HTTP client of {self._options.python}: {outcome.ending()}"
            hint = " | ".join(outcome.output[-5:])
        self._result.checks.append(Check("ready", False, expected, found, hint))

    def _judge_holder(self) -> bool:
        """The socket that answers belongs to the unit's control group; false when it is known to be another's."""
        found = listeners.listeners(urlsplit(self._options.url).hostname or "", self._port)
        if not found or not self._first.control_group or not all(listener.holders for listener in found):
            self._result.not_verified.append(
                f"that {self._options.url} is served by {self._options.unit}: no readable listening socket here"
            )
            return True
        foreign = self._foreign_holders()
        expected = f"a process of {self._options.unit}"
        held = self._named(foreign or [holder for listener in found for holder in listener.holders])
        hint = "that process answers instead of the server; stop it, or set another port" if foreign else ""
        self._result.checks.append(Check(f"listening on port {self._port}", not foreign, expected, held, hint))
        return not foreign

    def _foreign_holders(self) -> List[listeners.Holder]:
        host = urlsplit(self._options.url).hostname or ""
        group = self._first.control_group
        found: List[listeners.Holder] = []
        for listener in listeners.listeners(host, self._port):
            if not group or not any(holder.inside(group) for holder in listener.holders):
                found += listener.holders
        return found

    def _named(self, holders: List[listeners.Holder]) -> str:
        return ", ".join(f"pid {holder.pid} ({holder.named(self._redactor)})" for holder in holders)

    def _journal(self) -> List[str]:
        return _systemd.journal(self._options.unit, self._first.invocation, self._redactor)

    def _judge_simulation(self) -> None:
        value = _systemd.environment_value(_systemd.show(self._options.unit), SIMULATED)
        hint = "it makes up the accept length; remove it from the unit" if value else ""
        self._result.checks.append(Check(SIMULATED, not value, "not set", value or "not set", hint))

    def _judge_replies(self) -> None:
        options, checks = self._options, self._result.checks
        generated = [reply for reply in self._replies if reply.kind == "generate"]
        if self._down and len(generated) < len(self._prompts):
            self._result.not_verified.append(
                f"{len(self._prompts) - len(generated)} of {len(self._prompts)} generations: the unit went down"
            )
        else:
            checks += replies.answer_checks(generated, len(self._prompts))
        made = [
            found
            for reply in generated
            if not reply.fault
            for found in [replies.generation(reply)]
            if found is not None
        ]
        self._judge_repetition(made)
        if made:
            checks += replies.speculation_checks(
                made, options.speculation, options.min_accept_length, options.min_accept_rate
            )
        self._result.figures.update(replies.figures(made))
        for reply in self._replies:
            if reply.kind == "server_info":
                self._judge_info(reply)
            elif reply.kind == "chat":
                checks.append(replies.chat_check(reply))

    def _judge_repetition(self, made: List[replies.Generation]) -> None:
        """A difference is a failure only where the server promises that there is none."""
        infos = [reply.json for reply in self._replies if reply.kind == "server_info" and isinstance(reply.json, dict)]
        promised = any(info.get("enable_deterministic_inference") is True for info in infos)
        for check in replies.repetition_check(made):
            if check.passed or promised:
                self._result.checks.append(check)
            else:
                self._result.remarks.append(
                    f"{check.sentence()}; only enable_deterministic_inference promises the same"
                )

    def _judge_info(self, reply: replies.Reply) -> None:
        info = reply.json if isinstance(reply.json, dict) else None
        fault = reply.fault or ("" if info is not None else f"no JSON object: {reply.excerpt[:100]}")
        self._result.checks.append(Check("server_info", not fault, "a JSON object", fault or "received"))
        if fault or info is None:
            return
        self._result.details["server_info"] = info
        self._result.details["server"] = {name: info[name] for name in SERVER_FIELDS if name in info}
        wanted = self._options.model_path
        if wanted:
            served = str(info.get("model_path"))
            same = served == wanted or os.path.realpath(served) == os.path.realpath(wanted)
            self._result.checks.append(Check("model_path", same, wanted, served))

    def _list_unverified(self) -> None:
        """What this gate does not look at, or could not: a reader must not take it for proved."""
        missing = self._result.not_verified
        if not self._replies:
            missing.append("generations, speculation and server_info: no request was sent")
            return
        kinds = {reply.kind for reply in self._replies}
        missing += [
            f"{kind}: not asked after a request broke off" for kind in ("server_info", "chat") if kind not in kinds
        ]
        info = self._result.details.get("server_info", {})
        if not info:
            missing.append("CUDA graphs: server_info is missing")
        elif info.get("device") == "cpu":
            missing.append("CUDA graphs: the server runs on a CPU")
        elif info.get("disable_cuda_graph"):
            missing.append("CUDA graphs: the server runs without them")
        else:
            missing.append("CUDA graphs used in decoding: server_info only says that they are not switched off")
        if info.get("enable_nccl_nvls"):
            missing.append("NVLS used: the accepted flag does not prove it")
        missing += ["concurrent requests", "speed against a baseline"]


def _checked_port(url: str) -> int:
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        parts, port = None, None
    if parts is None or port is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise GateError(f"url {url!r} is not of the form http://HOST:PORT")
    if parts.username or parts.query or parts.fragment:
        raise GateError("url must not hold credentials, a query or a fragment; a key belongs in api_key_file")
    return port
