# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a role documents is what it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())


def load(role: str, name: str) -> dict[str, Any]:
    with (ROOT / "roles" / role / name).open(encoding="utf-8") as file:
        return yaml.safe_load(file)


@pytest.mark.parametrize("role", ROLES)
def test_every_default_is_documented_with_its_value(role: str) -> None:
    defaults = load(role, "defaults/main.yml")
    options = load(role, "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert set(defaults) == set(options)
    for name, option in options.items():
        if "default" in option:
            assert defaults[name] == option["default"], name
        else:
            assert option.get("required") or "{{" in str(defaults[name]), f"{name} documents no default"


@pytest.mark.parametrize("role", ROLES)
def test_every_option_of_a_role_is_in_its_readme(role: str) -> None:
    readme = (ROOT / "roles" / role / "README.md").read_text(encoding="utf-8")
    missing = [name for name in load(role, "defaults/main.yml") if f"`{name}`" not in readme]
    assert not missing


def test_profiles_are_the_choices_of_both_roles() -> None:
    profiles = set(load("preflight", "vars/main.yml")["_preflight_profiles"])
    for role, option in (("ddtree", "ddtree_profile"), ("preflight", "preflight_profile")):
        choices = load(role, "meta/argument_specs.yml")["argument_specs"]["main"]["options"][option]["choices"]
        assert set(choices) == profiles | {"auto"}
