# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import ipaddress
import socket

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._stream import addresses as module
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.addresses import addresses


def test_the_addresses_of_this_host_are_its_own_and_others_may_reach_them() -> None:
    for text in addresses():
        address = ipaddress.ip_address(text)
        assert not (address.is_loopback or address.is_link_local)
        socket.create_server((text, 0), family=socket.AF_INET if address.version == 4 else socket.AF_INET6).close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing; asks which of this host's addresses is used to reach others
        own = probe.getsockname()[0]
        assert own in addresses() or ipaddress.ip_address(own).is_loopback


def test_addresses_of_fast_interfaces_come_first_and_those_of_idle_bridges_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [("eth0", "10.0.0.1"), ("docker0", "172.17.0.1"), ("ib0", "10.1.0.1"), ("ib0", "169.254.3.4")]
    facts = {"eth0": ("up", "1000"), "docker0": ("down", "-1"), "ib0": ("up", "400000"), "tun0": ("unknown", "")}
    monkeypatch.setattr(module, "_ipv4_addresses", lambda: iter(found))
    monkeypatch.setattr(module, "_ipv6_addresses", lambda: iter([("ib0", "fd00::1"), ("tun0", "fd00::2")]))
    monkeypatch.setattr(module, "_sys", lambda interface, name: facts[interface][name == "speed"])
    assert addresses() == ["10.1.0.1", "fd00::1", "10.0.0.1", "fd00::2"]
