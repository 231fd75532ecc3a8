# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.ddtree.fleet.plugins.filter.inventory_yaml import inventory_yaml

DIFF = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n\n-x = 1\n+x = {}\n end\n"


def through_inventory(value: Any, folder: Path) -> Any:
    """What a play sees of a variable whose value was written so."""
    (folder / "patch_set.yml").write_text(inventory_yaml({"value": value}), encoding="utf-8")
    variables = DataLoader().load_from_file(str(folder / "patch_set.yml"))
    return Templar(DataLoader(), variables=variables).template(trust_as_template("{{ value }}"))


@pytest.mark.parametrize(
    "text",
    [
        DIFF,
        "",
        " leading\n",
        "no end",
        "two ends\n\n",
        "trailing space \nx\n",
        "carriage\r\nreturn\r\n",
        "{{ undefined }}",
        "line\n{% if %}\n",
        "{# comment #}",
        "tab\tand form feed\x0c\n",
        "ümlaut \u2028 and \U0001f600\n",
        "\ufeffmark\n",
        "control \x1b\x00\x7f\x85\n",
        "# no comment\n",
        "null",
        "1e3",
        "!tag\n",
        "--- x\n...\n",
        "x" * 400 + " " + "y" * 400,
    ],
)
def test_every_text_comes_back_as_it_was(text: str, tmp_path: Path) -> None:
    value = {"diffs": [{"text": text}], "files": [text]}
    assert through_inventory(value, tmp_path) == value


def test_it_reads_as_people_would_write_it() -> None:
    value = {
        "patch_set": {"files": ["a.py", "b.py"], "checks": [{"file": "a.py", "min": 2}], "diffs": [{"text": DIFF}]}
    }
    assert inventory_yaml(value) == (
        "patch_set:\n  files:\n    - a.py\n    - b.py\n  checks:\n    - file: a.py\n      min: 2\n  diffs:\n    - text: |\n"
        + "".join(f"        {line}\n" if line else "\n" for line in DIFF.splitlines())
    )
    assert inventory_yaml({"text": "{{ x }}\ny\n"}) == "text: !unsafe |\n  {{ x }}\n  y\n"


def test_what_a_play_hands_over_is_taken_and_what_yaml_cannot_say_is_refused() -> None:
    tagged = {trust_as_template("key"): [trust_as_template("a"), trust_as_template("b\nc\n")]}
    assert inventory_yaml(tagged) == "key:\n  - a\n  - |\n    b\n    c\n"
    with pytest.raises(AnsibleFilterError, match="ddtree.fleet.inventory_yaml cannot write this value"):
        inventory_yaml({"x": object()})
