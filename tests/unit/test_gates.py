# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lists of gates and of the tests that notice when one is switched off name tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("gates.md", "server-gate.md")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_unit_test_that_is_named_is_there(document: str) -> None:
    named = set(re.findall(r"\b(test_\w+)`", (ROOT / "docs" / document).read_text(encoding="utf-8")))
    files = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "unit").rglob("test_*.py"))
    assert len(named) > 20
    assert named - set(re.findall(r"^def (test_\w+)\(", files, re.MULTILINE)) == set()


def test_every_task_of_a_scenario_that_is_named_is_there() -> None:
    named = re.findall(r"\*(\w+)\*: ([^|(\n]+)", (ROOT / "docs" / "gates.md").read_text(encoding="utf-8"))
    assert len(named) > 5
    for scenario, task in named:
        folders = [ROOT / "extensions" / "molecule" / name for name in (scenario, "tasks")]
        texts = [path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("*.yml")]
        assert any(re.search(rf'- name: "?{re.escape(task.strip(" ."))}', text) for text in texts), (scenario, task)
