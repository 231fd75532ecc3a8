# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: summary
type: aggregate
short_description: One line a host at the end of a deployment
version_added: 0.1.0
author: the ddtree.fleet authors (@ddtree)
description:
  - Prints a table of the hosts that an environment was streamed to - release, what was sent, gates, accept length, tokens per second.
  - Hosts that failed or were unreachable come first. Below the table stand the reasons, each once with its hosts, and last how many
    hosts came to which end.
  - A failure that was rescued does not count, unless the playbook remembers it as the host's C(ddtree_failed).
  - Prints nothing for playbooks that deploy nothing, unless a host failed in one that runs other tasks of this collection.
requirements:
  - C(ddtree.fleet.summary) in C(callbacks_enabled)
seealso:
  - plugin: ddtree.fleet.report
    plugin_type: callback
"""

from typing import Optional

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.callback import RecordingCallback
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import FAILED, Host, Run

HEADINGS = (
    "host",
    "result",
    "release",
    "files sent",
    "MiB sent",
    "gates passed",
    "accept length",
    "tokens/s",
    "seconds",
)


class CallbackModule(RecordingCallback):
    """Prints what the tasks of this collection found, once at the end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "ddtree.fleet.summary"
    CALLBACK_NEEDS_ENABLED = True

    def told(self, run: Run) -> None:
        rows = [HEADINGS, *(row(host, run.word(host.outcome)) for host in run.hosts)]
        widths = [max(len(cells[column]) for cells in rows) for column in range(len(HEADINGS))]
        self._display.banner("DDTREE FLEET")
        for cells in rows:
            self._display.display("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())
        for reason, hosts in run.reasons():
            names = ", ".join(host.name for host in hosts)
            self._display.display(f"\n{names}:\n  " + "\n  ".join(reason.splitlines()))
        self._display.display(f"\n{run.headline()}")


def row(host: Host, word: str) -> tuple[str, ...]:
    """The cells of a host, whose outcome is called ``word``; empty where nothing was seen."""
    sent = host.transfer
    return (
        host.name,
        _result(host, word),
        host.wanted or host.serves,
        f"{sent.get('files_sent', 0):,.0f}" if sent else "",
        f"{sent.get('bytes_sent', 0) / (1 << 20):,.1f}" if sent else "",
        ", ".join(dict.fromkeys(gate.name for gate in host.own_gates() if gate.passed)),
        _figure(host.figures("accept_length")[0], 2),
        _figure(host.figures("tokens_per_second")[0], 1),
        f"{host.seconds:.0f}",
    )


def _result(host: Host, word: str) -> str:
    """What became of it, with a word that stands out and can be searched for where it failed."""
    if host.failed:
        return "FAILED" if host.outcome == FAILED else f"FAILED, {word}"
    return word


def _figure(value: Optional[float], digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
