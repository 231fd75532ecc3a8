# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A clone works wherever it is, and so does the package that Galaxy gets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = {
    "CHANGELOG.md",
    "FILES.json",
    "LICENSE",
    "MANIFEST.json",
    "README.md",
    "changelogs",
    "docs",
    "meta",
    "playbooks",
    "plugins",
    "roles",
}
INVENTORY = """
all:
  children:
    ddtree_source: {hosts: {ct200: {}}}
    b300: {hosts: {b300-1: {}}}
    rtx_pro_6000: {hosts: {rtx6000-1: {}}}
"""


def ansible(*argv: str, cwd: Path, collections: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    if collections:
        environment["ANSIBLE_COLLECTIONS_PATH"] = collections
    return subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git tracks and what would be added to it, in another folder."""
    target = tmp_path_factory.mktemp("some folder") / "anything"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    names = [name for name in listed.decode().split("\0") if name and os.path.lexists(ROOT / name)]
    target.mkdir()
    packed = subprocess.run(["tar", "-c", "--no-recursion", *names], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=target, input=packed, check=True)
    return target


@pytest.fixture(scope="module")
def tarball(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("built")
    built = ansible("ansible-galaxy", "collection", "build", "--output-path", str(output), cwd=clone)
    assert built.returncode == 0, built.stderr
    return next(output.glob("ddtree-fleet-*.tar.gz"))


@pytest.fixture(scope="module")
def installed(tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A collections path outside the clone with the package in it."""
    path = tmp_path_factory.mktemp("installed")
    done = ansible("ansible-galaxy", "collection", "install", "--offline", "-p", str(path), str(tarball), cwd=path)
    assert done.returncode == 0, done.stderr
    return str(path)


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    path = tmp_path / "hosts.yml"
    path.write_text(INVENTORY, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("folder", "playbook"), [(".", "playbooks/deploy-ddtree.yml"), ("playbooks", "deploy-ddtree.yml")]
)
def test_a_clone_in_any_folder_finds_everything(clone: Path, inventory: str, folder: str, playbook: str) -> None:
    listed = ansible("ansible-playbook", "-i", inventory, playbook, "--list-tasks", cwd=clone / folder)
    assert listed.returncode == 0, listed.stderr
    assert "ddtree.fleet.venv : Stream the environment to the hosts of this batch" in listed.stdout


def test_the_example_inventory_is_complete(clone: Path) -> None:
    listed = ansible("ansible-playbook", "playbooks/deploy-ddtree.yml", "--list-hosts", cwd=clone)
    assert listed.returncode == 0, listed.stderr
    # The plays that follow get their hosts from what the first one plans.
    planned = listed.stdout.partition("play #2")[0]
    assert set(planned.split()) >= {"ct200", "b300-1", "b300-2", "rtx6000-1", "rtx6000-2"}


def test_the_package_holds_public_content_only(tarball: Path) -> None:
    with tarfile.open(tarball) as archive:
        names = archive.getnames()
    assert {name.split("/")[0] for name in names} <= PUBLIC
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", "ansible.cfg"))]
    assert "playbooks/deploy_ddtree.yml" in names
    assert "plugins/module_utils/_stream/agent.py" in names


def test_an_installed_package_works_by_its_full_names(installed: str, inventory: str, tmp_path: Path) -> None:
    listed = ansible(
        "ansible-playbook",
        "-i",
        inventory,
        "ddtree.fleet.deploy_ddtree",
        "--list-tasks",
        cwd=tmp_path,
        collections=installed,
    )
    assert listed.returncode == 0, listed.stderr
    assert "Bring the service there" in listed.stdout
    documented = ansible("ansible-doc", "-t", "module", "ddtree.fleet.venv_stream", cwd=tmp_path, collections=installed)
    assert documented.returncode == 0 and "ddtree.fleet.venv_stream" in documented.stdout


@pytest.fixture
def forget_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave no hash index behind for what a test streams."""
    yield
    monkeypatch.syspath_prepend(str(ROOT / ".collections"))
    from ansible_collections.ddtree.fleet.tests.unit.agents import forget

    forget(tmp_path)


@pytest.mark.usefixtures("forget_hashes")
def test_an_installed_package_streams(installed: str, tmp_path: Path) -> None:
    src, dest = tmp_path / "src", tmp_path / "venv"
    (src / "lib").mkdir(parents=True)
    (src / "lib" / "file").write_text("content", encoding="utf-8")
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"src": local, "dst": local}}}), encoding="utf-8")
    task = {"ddtree.fleet.venv_stream": {"source": "src", "src": str(src), "dest": str(dest)}}
    play = [{"hosts": "dst", "gather_facts": False, "tasks": [task]}]
    (tmp_path / "play.json").write_text(json.dumps(play), encoding="utf-8")
    for changed in ("changed=1", "changed=0"):
        done = ansible("ansible-playbook", "-i", "hosts.json", "play.json", cwd=tmp_path, collections=installed)
        assert done.returncode == 0, done.stdout + done.stderr
        assert changed in done.stdout
    releases = [path for path in Path(f"{dest}.releases").iterdir() if re.fullmatch("[0-9a-f]{16}", path.name)]
    assert [(path / "lib" / "file").read_text(encoding="utf-8") for path in releases] == ["content"]
