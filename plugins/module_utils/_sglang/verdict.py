# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From what a server answered to checks, figures, and what stays unverified. No HTTP and no systemd in here."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import graphs, replies, speculation, speed
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateResult
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import Generation, Reply
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.server_options import Plan, ServerOptions
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check

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
    "speculative_draft_window_size",
    "speculative_ddtree_budget",
    "speculative_ddtree_topk_cap",
)


def judge(options: ServerOptions, plan: Plan, received: Sequence[Reply], broken_off: str, result: GateResult) -> None:
    """Add to ``result`` what ``received`` says. ``broken_off``: why not all was asked, or empty."""
    received = sorted(received, key=lambda reply: reply.number)
    alone = [reply for reply in received if reply.kind in (replies.GENERATE, replies.STREAM)]
    together = [reply for reply in received if reply.kind == replies.CONCURRENT]
    sent = len(alone) + len(together)
    result.figures["requests"] = {
        "sent": len(received),
        "errors": sum(bool(reply.fault) for reply in received if reply.kind != replies.COUNTERS),
    }
    if broken_off and sent < plan.size:
        result.not_verified.append(f"{plan.size - sent} of {plan.size} generations: {broken_off}")
    _judge_generations(options, plan, alone, "", len(plan.sequential) if not broken_off else 0, result)
    if together or (plan.concurrent and not broken_off):
        asked = len(plan.concurrent) if not broken_off else 0
        _judge_generations(options, plan, together, "concurrent ", asked, result)
    info = _judge_info(options, received, result)
    made = replies.generations([*alone, *together])
    _judge_repetition(made, info, result)
    result.figures.update(speed.figures(made))
    _judge_graphs(options, received, info, result)
    for reply in received:
        if reply.kind == replies.CHAT:
            result.checks.append(replies.chat_check(reply))
    _list_unverified(options, received, info, result)


def _judge_generations(
    options: ServerOptions, plan: Plan, received: List[Reply], label: str, asked: int, result: GateResult
) -> None:
    made = replies.generations(received)
    result.checks += replies.answer_checks(received, asked or len(received), label)
    result.checks += replies.expected_text_checks(made, plan.expected)
    if made:
        result.checks += speculation.speculation_checks(
            made, options.speculation, options.min_accept_length, options.min_accept_rate, label
        )


def _judge_repetition(made: Sequence[Generation], info: Dict[str, Any], result: GateResult) -> None:
    """A difference is a failure only where the server promises that there is none."""
    for check in replies.repetition_check(made):
        if check.passed or info.get("enable_deterministic_inference") is True:
            result.checks.append(check)
        else:
            result.remarks.append(f"{check.sentence()}; only enable_deterministic_inference promises the same")


def _judge_info(options: ServerOptions, received: Sequence[Reply], result: GateResult) -> Dict[str, Any]:
    """The server_info, empty where there is none to be had."""
    reply = next((reply for reply in received if reply.kind == replies.SERVER_INFO), None)
    if reply is None:
        return {}
    info: Dict[str, Any] = reply.json if isinstance(reply.json, dict) and not reply.fault else {}
    fault = reply.fault or ("" if info else f"no JSON object: {reply.excerpt[:100]}")
    result.checks.append(Check("server_info", not fault, "a JSON object", fault or "received"))
    if not info:
        return {}
    result.details["server_info"] = info
    result.details["server"] = {name: info[name] for name in SERVER_FIELDS if name in info}
    wanted = options.model_path
    if wanted:
        served = str(info.get("model_path"))
        same = served == wanted or os.path.realpath(served) == os.path.realpath(wanted)
        result.checks.append(Check("model_path", same, wanted, served))
    return info


def _judge_graphs(options: ServerOptions, received: Sequence[Reply], info: Dict[str, Any], result: GateResult) -> None:
    counted = graphs.passes([reply for reply in received if reply.kind == replies.COUNTERS])
    result.checks += graphs.graph_checks(options.cuda_graphs, info, counted)
    result.remarks += graphs.remarks(options.cuda_graphs, counted)
    result.not_verified += graphs.unverified(options.cuda_graphs, info, counted)
    if not counted.fault:
        result.figures["cuda_graph_passes"] = counted.all


def _list_unverified(
    options: ServerOptions, received: Sequence[Reply], info: Dict[str, Any], result: GateResult
) -> None:
    """What this gate does not look at, or could not: a reader must not take it for proved."""
    kinds = {reply.kind for reply in received}
    result.not_verified += [
        f"{kind}: not asked after a request broke off"
        for kind in (replies.SERVER_INFO, replies.CHAT)
        if kind not in kinds
    ]
    asked = " ".join(f"{wanted.name} {wanted.pattern.pattern}" for wanted in options.log_expect).lower()
    if info.get("enable_nccl_nvls") and "nvls" not in asked:
        result.not_verified.append("NVLS used: the accepted flag does not prove it, and log_expect does not ask for it")
    if not options.concurrent:
        result.not_verified.append("concurrent requests: concurrent is 0")
    if not options.validate_certs and options.url.startswith("https:"):
        result.not_verified.append("the server's certificate: validate_certs is false")
