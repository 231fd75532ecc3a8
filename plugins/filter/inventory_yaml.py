# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A filter that writes values as YAML which people read and an inventory takes as they are."""

from __future__ import annotations

import re
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError
from ansible.parsing.yaml.dumper import AnsibleDumper

TEMPLATE = re.compile(r"\{[{%#]")


def inventory_yaml(value: Any) -> str:
    """YAML with the texts of several lines as blocks, and with those that look like templates marked as none."""
    try:
        plain = yaml.safe_load(yaml.dump(value, Dumper=AnsibleDumper, sort_keys=False))
        return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=160, indent=2)
    except yaml.YAMLError as error:
        raise AnsibleFilterError(f"ddtree.fleet.inventory_yaml cannot write this value: {error}") from error


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    if TEMPLATE.search(text):
        return dumper.represent_scalar("!unsafe", text, style or "'")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"inventory_yaml": inventory_yaml}
