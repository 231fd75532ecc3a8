# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that plan a rollout, and judge how far it may go."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Union

from ansible.errors import AnsibleFilterError

Amount = Union[int, str]
HARDWARE = ("b300", "rtx_pro_6000")
NUMBER = re.compile(r"[0-9]+\Z")
SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%\Z")


def rollout(
    hosts: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    canary: Amount = 1,
    batches: Union[Amount, Sequence[Amount]] = ("25%",),
    max_failed: Amount = 0,
) -> dict[str, Any]:
    """Which of ``hosts`` go first and which follow together: ``canary`` (a list), ``batches`` (a list of lists), ``max_failed``.

    ``canary`` is a number of hosts of each hardware group, or the name of a group. ``batches`` are numbers or shares of
    the hosts that follow, the last one repeated. Raises AnsibleFilterError for what cannot be meant.
    """
    _amount("ddtree_max_failed", max_failed, least=0)
    first = _canary(hosts, groups, canary)
    rest = [host for host in hosts if host not in first]
    return {"canary": first, "batches": list(_batches(rest, batches)), "max_failed": max_failed}


def rollout_stopped(planned: Mapping[str, Any], done: Collection[str], host: str = "") -> str:
    """Why a rollout stops: the first stage before that of ``host`` in which more hosts failed than may, else an empty text.

    A host that is not among ``done`` has failed, whatever became of it. Without ``host`` all stages count.
    """
    stages = list(_stages(planned))
    for number, (name, hosts, may_fail) in enumerate(stages):
        if host in hosts:
            break
        failed = [member for member in hosts if member not in done]
        if len(failed) > may_fail:
            held_back = [member for _name, following, _may_fail in stages[number + 1 :] for member in following]
            return (
                f"{len(failed)} of {len(hosts)} hosts of {name} failed, {may_fail or 'none'} may: {', '.join(failed)}. "
                f"Held back: {', '.join(held_back) or 'none'}"
            )
    return ""


def _stages(planned: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str], int]]:
    """Name, hosts, and how many of them may fail. A canary of which one may fail would be none."""
    yield "the canary", planned["canary"], 0
    for number, batch in enumerate(planned["batches"], start=1):
        name = f"batch {number} of {len(planned['batches'])}"
        yield name, batch, _count(_amount("ddtree_max_failed", planned["max_failed"], least=0), len(batch))


def _canary(hosts: Sequence[str], groups: Mapping[str, Sequence[str]], canary: Amount) -> list[str]:
    if not isinstance(canary, bool) and NUMBER.match(str(canary)):
        chosen: list[str] = []
        for group in HARDWARE:
            chosen += [host for host in hosts if host in groups.get(group, ())][: int(canary)]
        return list(dict.fromkeys(chosen))
    if not isinstance(canary, str) or canary not in groups:
        raise AnsibleFilterError(
            f"ddtree_canary is {canary!r}, which is neither a number nor a group of the inventory; the groups are "
            f"{', '.join(sorted(groups))}"
        )
    chosen = [host for host in hosts if host in groups[str(canary)]]
    if hosts and not chosen:
        raise AnsibleFilterError(
            f"none of the hosts of this run is in the group {canary}, from which ddtree_canary takes the canary; add one to "
            "--limit, or say -e ddtree_canary=0 to go without"
        )
    return chosen


def _batches(hosts: Sequence[str], sizes: Union[Amount, Sequence[Amount]]) -> Iterator[list[str]]:
    wanted = str(sizes).split(",") if isinstance(sizes, (str, int)) else list(sizes or [])
    if not wanted:
        raise AnsibleFilterError("ddtree_batches is empty; say ['100%'] for all hosts at once")
    amounts = [_amount("ddtree_batches", size, least=1) for size in wanted]
    begin, number = 0, 0
    while begin < len(hosts):
        size = max(1, _count(amounts[min(number, len(amounts) - 1)], len(hosts)))
        yield list(hosts[begin : begin + size])
        begin, number = begin + size, number + 1


def _amount(setting: str, value: Any, least: int) -> tuple[float, bool]:
    """A number and false, or a share of 1 and true."""
    text = str(value).strip()
    share = SHARE.match(text)
    if share and (least == 0 or float(share[1]) > 0) and float(share[1]) <= 100:
        return float(share[1]) / 100, True
    if not isinstance(value, bool) and NUMBER.match(text) and int(text) >= least:
        return int(text), False
    raise AnsibleFilterError(
        f"{setting} has {value!r}, which is neither a number of hosts from {least} nor a share such as 25%"
    )


def _count(amount: tuple[float, bool], hosts: int) -> int:
    """Shares are rounded down, by more than what floating point makes of 0.07 * 100."""
    return int(amount[0] * hosts + 1e-9) if amount[1] else int(amount[0])


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"rollout": rollout, "rollout_stopped": rollout_stopped}
