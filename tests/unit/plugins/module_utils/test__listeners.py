# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import socket

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._listeners import Holder, listeners


@pytest.mark.parametrize(
    ("family", "bound", "asked"),
    [
        (socket.AF_INET, "127.0.0.1", "localhost"),
        (socket.AF_INET, "0.0.0.0", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),
    ],
)
def test_the_holder_of_a_port_is_found(family: int, bound: str, asked: str) -> None:
    try:
        listening = socket.create_server((bound, 0), family=family)
    except OSError:
        pytest.skip(f"no {bound} here")
    with listening:
        found = listeners(asked, listening.getsockname()[1])
        assert [listener.address for listener in found] == [bound]
        assert os.getpid() in [holder.pid for holder in found[0].holders]
        assert "python" in found[0].holders[0].command or "pytest" in found[0].holders[0].command


def test_nobody_listens_or_elsewhere() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert listeners("127.0.0.2", port) == []
        assert listeners("no such host", port) == []
    assert listeners("127.0.0.1", port) == []


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/system.slice/x.service", True),
        ("/system.slice/x.service/scheduler", True),
        ("/machine/payload/system.slice/x.service", True),
        ("/system.slice/x.service2", False),
        ("/user.slice", False),
    ],
)
def test_control_groups(path: str, inside: bool) -> None:
    assert Holder(1, "x", ("/", path)).inside("/system.slice/x.service") is inside
