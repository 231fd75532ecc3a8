# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Iterator, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._service import health, units
from ansible_collections.ddtree.fleet.plugins.module_utils._service.units import Unit

UNIT = "sglang.service"


def unit(command: str, active: str = "active", sub: str = "running") -> Unit:
    told = f"{{ path=/venv/bin/python ; argv[]={command} ; ignore_errors=no ; pid=1 }}" if command else ""
    return Unit(
        UNIT, "loaded", active, sub, "success", "0", "1", "/g", False, [told] if told else [], [], "enabled", 1.0
    )


@pytest.mark.parametrize(
    ("command", "address", "url"),
    [
        ("python -m sglang.launch_server --port 30001", "127.0.0.1:30001", "http://127.0.0.1:30001/health"),
        ("python -m sglang.launch_server", "127.0.0.1:30000", "http://127.0.0.1:30000/health"),
        ("python x --host 0.0.0.0 --port=8000", "0.0.0.0:8000", "http://127.0.0.1:8000/health"),
        ("python x --host :: --port 8000", "[::]:8000", "http://[::1]:8000/health"),
        ("python x --host 10.0.0.1 --port 1 --port 2", "10.0.0.1:2", "http://10.0.0.1:2/health"),
        ("python x --port 1 --ssl-certfile /x.pem", "127.0.0.1:1", "https://127.0.0.1:1/health"),
        ("/root/start.sh", "", ""),
        ("python -m sglang.launch_server --port ${PORT}", "", ""),
        ("", "", ""),
    ],
)
def test_where_a_server_answers(command: str, address: str, url: str) -> None:
    assert (health.address(unit(command)), health.url(unit(command))) == (address, url)


class Server(HTTPServer):
    answers: List[int] = []


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.send_response(self.server.answers.pop(0))
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        return


@pytest.fixture(name="server")
def server_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of the unit on a port of its own, and a proxy in the environment that must not be asked."""
    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setattr(health, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(units, "look", lambda *_args: {UNIT: unit(f"x --port {server.server_port}")})
    yield server
    server.shutdown()
    server.server_close()


def test_a_server_that_becomes_healthy_is_waited_for(server: Server) -> None:
    server.answers = [503, 503, 200]
    assert health.wait("sglang", [UNIT], 10) == []
    assert server.answers == []


def test_a_server_that_does_not_is_said(server: Server) -> None:
    server.answers = [503]
    assert health.wait("sglang", [UNIT], 0) == [f"{UNIT}: http://127.0.0.1:{server.server_port}/health answers 503"]


@pytest.mark.parametrize(("active", "sub"), [("failed", "failed"), ("inactive", "dead")])
def test_a_server_that_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, active: str, sub: str) -> None:
    monkeypatch.setattr(units, "look", lambda *_args: {UNIT: unit("x --port 1", active, sub)})
    assert health.wait("sglang", [UNIT], 600) == [f"{UNIT}: {active} ({sub}, result success)"]


def test_of_one_whose_address_is_not_known_it_counts_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "look", lambda *_args: {UNIT: unit("/root/start.sh")})
    assert health.wait("sglang", [UNIT], 600) == []
