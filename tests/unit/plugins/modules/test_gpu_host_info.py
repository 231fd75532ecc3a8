# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as a process, with a stand-in for systemctl."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

FAKES = Path(__file__).resolve().parents[3] / "replay" / "fake_systemd"


def test_the_port_is_looked_at_where_the_service_will_listen(
    run_module: Callable[..., Dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{FAKES}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SYSTEMD", str(tmp_path))
    (tmp_path / "unit").write_text("active=inactive\n")
    with socket.create_server(("127.0.0.2", 0)) as listener:
        arguments = {"port": listener.getsockname()[1], "unit": "sglang.service", "paths": ["/", "/nowhere"]}
        found = {host: run_module("gpu_host_info", {**arguments, "host": host}) for host in ("127.0.0.2", "0.0.0.0")}
        found[""] = run_module("gpu_host_info", arguments)
    assert {host: (result["port_holder"] or {}).get("pid") for host, result in found.items()} == {
        "127.0.0.2": os.getpid(),
        "0.0.0.0": os.getpid(),
        "": None,
    }
    assert found[""]["missing_paths"] == ["/nowhere"]
    assert found[""]["changed"] is False
