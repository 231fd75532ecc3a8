# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which way content goes: directly from host to host, or through the relay when a host cannot do that."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.plugin_utils import _relay
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import BOOTSTRAP, PACKAGE
from ansible_collections.ddtree.fleet.plugins.plugin_utils._endpoint import Endpoint
from ansible_collections.ddtree.fleet.plugins.plugin_utils._relay import Relay, Request, Target

pytestmark = pytest.mark.usefixtures("forget_hashes")


@pytest.fixture(name="src")
def src_fixture(tmp_path: Path) -> Path:
    src = tmp_path / "src"
    (src / "lib" / "deep").mkdir(parents=True)
    for number in range(30):
        (src / "lib" / f"{number:02}").write_bytes(os.urandom(1 << 18))
    (src / "lib" / "deep" / "x").write_text("x")
    return src


def request(src: Path, dest: Any, **more: Any) -> Request:
    fields: Dict[str, Any] = {
        "src": str(src),
        "dest": str(dest),
        "exclude": [],
        "source": "source",
        "full": False,
        "repair": False,
    }
    fields.update({"bytecode": True, "check": False, "run": "run", "who": "me", "take_over": False, "idle": 10.0})
    return Request(**{**fields, **more})


def here(name: str, program: str = BOOTSTRAP) -> Endpoint:
    """A host that is this one, with the real agent or a ``program`` in its place."""
    return Endpoint(name, [sys.executable, "-c", program], 10)


def altered(code: str) -> str:
    """The real agent with some lines that run in it before it serves: to fail where a host may fail."""
    lines = f"import time\nfrom {PACKAGE} import _releases\nfrom {PACKAGE}._stream import source, target\n{code}\nagent.main("
    load = "exec(i.read(int(i.readline())))"
    assert load in BOOTSTRAP
    return BOOTSTRAP.replace(load, f"exec(i.read(int(i.readline())).replace(b'agent.main(', {lines.encode()!r}))")


def rooted(name: str, root: Path, code: str = "") -> Endpoint:
    """A host whose releases all are below ``root``, so that several hosts with the same dest fit on this one.

    It does not wait the two seconds after a commit that make its files old enough for the index.
    """
    root.mkdir(exist_ok=True)
    store = f"make = _releases.Store.__init__\n_releases.Store.__init__ = lambda self, dest: make(self, {str(root)!r} + dest)\ntarget.QUIET_NS = 0\n"
    return here(name, altered(store + code))


def target(tmp_path: Path, name: str, code: str = "") -> Target:
    return Target(rooted(name, tmp_path / name, code), sys.executable)


def run(wanted: Request, targets: List[Target], code: str = "") -> None:
    Relay(wanted, lambda line: None).run(here("source", altered(code)), sys.executable, targets)


@pytest.mark.parametrize("streams", [1, 3])
def test_content_goes_directly_between_two_hosts(tmp_path: Path, src: Path, streams: int) -> None:
    targets = [target(tmp_path, "t1"), target(tmp_path, "t2")]
    run(request(src, "/srv/env", path="direct", streams=streams), targets)
    assert [(one.verdict.path, one.verdict.failed) for one in targets] == [("direct", False)] * 2
    for name in ("t1", "t2"):
        installed = tmp_path / name / "srv" / "env.releases" / targets[0].verdict.release
        assert (installed / "lib" / "07").read_bytes() == (src / "lib" / "07").read_bytes()


WITHOUT_TLS = "import sys\nsys.modules['ssl'] = None"


@pytest.mark.parametrize("lacking", ["source", "target"])
@pytest.mark.parametrize("path", ["auto", "direct"])
def test_a_python_without_tls_is_named_and_the_relay_path_works(
    tmp_path: Path, src: Path, path: str, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_relay, "DIRECT_FROM", 0)
    only = target(tmp_path, "t1", WITHOUT_TLS if lacking == "target" else "")
    run(request(src, "/srv/env", path=path), [only], WITHOUT_TLS if lacking == "source" else "")
    said = only.verdict.msg if path == "direct" else only.verdict.notices[0]
    what = "it cannot be connected to" if lacking == "target" else "source cannot connect to it"
    assert f"t1: {what} directly: the Python of" in said
    assert "has no ssl module, which the direct path needs; " in said
    assert (only.verdict.failed, only.verdict.path) == ((True, "") if path == "direct" else (False, "relay"))


def test_a_target_with_no_free_port_is_served_through_the_relay(
    tmp_path: Path, src: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_relay, "DIRECT_FROM", 0)
    only = target(tmp_path, "t1")
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        run(request(src, "/srv/env", path="auto", ports=(port, port)), [only])
    assert (
        f"no port of {port}-{port} can be used for the direct path (Address already in use)" in only.verdict.notices[0]
    )
    assert (only.verdict.failed, only.verdict.path) == (False, "relay")
