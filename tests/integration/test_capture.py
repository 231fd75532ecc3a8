# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook that captures a patch set writes an inventory's file, once, which then proves what it was captured from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASSERT = [
    {
        "hosts": "ddtree_source",
        "gather_facts": False,
        "tasks": [
            {
                "ddtree.fleet.patch_assert": {
                    "root": "{{ ddtree_src }}",
                    "files": "{{ ddtree_patch_set.files }}",
                    "checks": "{{ ddtree_patch_set.checks }}",
                    "diffs": "{{ ddtree_patch_set.diffs }}",
                    "baseline": {"kind": "record"},
                }
            }
        ],
    }
]


class Lab:
    """An inventory with one source, which is this machine, and its patched environment."""

    def __init__(self, folder: Path) -> None:
        from ansible_collections.ddtree.fleet.tests.unit.packages import Packages, wheel

        files = {"sglang/__init__.py": "__version__ = '0.5.11'\n", "sglang/a.py": "a = 1\n"}
        self.source = Packages(folder / "venv")
        (self.source.root / "bin" / "python").symlink_to(sys.executable)
        self.source.install("sglang", "0.5.11", files)
        wheel(folder / "wheels", files, "sglang", "0.5.11")
        self.source.write("sglang/a.py", "a = 2\n\n\ndef is_ddtree():\n    return '{{ undefined }}'\n")
        self.inventory = folder / "fleet"
        (self.inventory / "group_vars" / "all").mkdir(parents=True)
        host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
        settings = {
            "ddtree_src": str(self.source.root),
            "ddtree_model_path": "/model",
            "ddtree_draft_model_path": "/drafter",
            "ddtree_baseline": "wheel",
            "ddtree_baseline_options": {"path": str(folder / "wheels")},
        }
        groups = {"ddtree_source": {"hosts": {"here": host}, "vars": settings}}
        (self.inventory / "hosts.json").write_text(json.dumps({"all": {"children": groups}}), encoding="utf-8")
        self.dest = self.inventory / "group_vars" / "all" / "patch_set.yml"
        (folder / "assert.json").write_text(json.dumps(ASSERT), encoding="utf-8")

    def play(self, playbook: str, *more: str) -> str:
        """What a run prints, and how it ends."""
        done = subprocess.run(
            ["ansible-playbook", "-i", str(self.inventory / "hosts.json"), playbook, *more],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout + done.stderr

    def capture(self, dest: Path, *more: str) -> str:
        return self.play("playbooks/capture-patch-set.yml", "-e", f"capture_dest={dest}", *more)

    def hold(self) -> str:
        return self.play(str(self.inventory.parent / "assert.json"))


@pytest.fixture(name="lab")
def lab_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.syspath_prepend(str(ROOT / ".collections"))
    return Lab(tmp_path)


def test_a_captured_patch_set_is_an_inventory_that_proves_its_source(lab: Lab) -> None:
    said = lab.capture(lab.dest, "--check", "--diff")
    assert "changed=1" in said and "+    - sglang/a.py" in said and not lab.dest.exists()
    assert "changed=1" in lab.capture(lab.dest)
    written = lab.dest.read_text(encoding="utf-8")
    assert f"# How here:{lab.source.root} differs from its wheel baseline" in written
    assert "    - text: !unsafe |\n        diff --git a/sglang/a.py b/sglang/a.py\n" in written
    assert lab.dest.stat().st_mode & 0o777 == 0o644
    assert "changed=0" in lab.capture(lab.dest)
    assert lab.dest.read_text(encoding="utf-8") == written
    assert "ok=1 " in lab.hold()
    lab.source.write("sglang/a.py", "a = 1\n")
    assert "hunk 1 of a.py in sglang/a.py:1: expected applied, found absent" in lab.hold()


def test_a_place_that_would_break_the_inventory_is_refused(lab: Lab) -> None:
    assert "capture_dest is group_vars/x.yml, which must be the absolute path" in lab.capture(Path("group_vars/x.yml"))
    (lab.inventory / "group_vars" / "all.yml").write_text("x: 1\n", encoding="utf-8")
    assert "so that file would no longer count; move it into the folder" in " ".join(lab.capture(lab.dest).split())
    assert not lab.dest.exists()
