# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import PROTOCOL, PeerError
from ansible_collections.ddtree.fleet.tests.unit.agents import Destination, Source, listing

pytestmark = pytest.mark.usefixtures("forget_hashes")


@pytest.mark.parametrize(
    ("protocol", "found"), [({}, 1), ({"protocol": 1}, 1), ({"protocol": PROTOCOL + 1}, PROTOCOL + 1)]
)
@pytest.mark.parametrize("op", ["scan", "open"])
def test_a_relay_of_another_version_gets_one_clear_sentence(
    tmp_path: Path, op: str, protocol: Dict[str, Any], found: int
) -> None:
    with Source() as agent:
        agent.tell(op, src=str(tmp_path), dest=str(tmp_path / "dest"), **protocol)
        assert agent.complaint() == (
            f"this agent speaks version {PROTOCOL} of the stream protocol and the other end version {found}; "
            "use the same release of ddtree.fleet on both"
        )
        assert agent.process.wait(10) == 0
    assert list(tmp_path.iterdir()) == []


def test_anything_but_a_first_request_is_out_of_step() -> None:
    with Source() as agent:
        agent.tell("send", groups=[])
        assert agent.complaint() == "the stream is out of step: expected scan or open, got send"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_agent_that_is_ended_gives_the_lease_back(tmp_path: Path, number: signal.Signals) -> None:
    dest = tmp_path / "dest"
    with Destination() as target:
        target.open(dest)
        assert Path(f"{dest}.lock").exists()
        target.process.send_signal(number)
        target.process.wait(10)
    assert not Path(f"{dest}.lock").exists()


def test_an_agent_ends_when_the_relay_is_gone_and_gives_the_lease_back(tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    with Destination() as target:
        target.open(dest)
        assert target.process.stdin and target.process.stdout
        target.process.stdout.close()
        target.process.stdin.close()
        target.process.wait(10)
    assert not Path(f"{dest}.lock").exists()


def test_a_failure_of_the_system_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    before = listing(tmp_path)
    with Destination() as target, pytest.raises(PeerError, match=f"^{tmp_path}/file: File exists$"):
        target.open(tmp_path / "file" / "dest")
    assert os.listdir(tmp_path) == ["file"]
    assert listing(tmp_path) == before
