# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters that turn a mapping of server arguments into a command line, and a command line into a line of a unit file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

SPECIAL = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


def arguments(options: Mapping[str, Any]) -> list[str]:
    """``{"tp-size": 8, "enable-metrics": true}`` as ``["--tp-size", "8", "--enable-metrics"]``; false, null and what is empty leave out."""
    if not isinstance(options, Mapping):
        raise AnsibleFilterError(f"ddtree.fleet.arguments needs a mapping of options, not {type(options).__name__}")
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False or value == "" or value == []:
            continue
        if str(name).startswith("-"):
            raise AnsibleFilterError(f"write the option {name} without its dashes")
        words.append(f"--{name}")
        if value is not True:
            values: Iterable[Any] = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            words += [str(item) for item in values]
    return words


def unit_words(words: Sequence[str]) -> str:
    """Words as one line of a unit file, so that systemd passes on exactly these: quoted, and % and $ taken literally.

    ``${CREDENTIALS_DIRECTORY}`` alone is left for systemd to fill in.
    """
    return " ".join(_unit_word(str(word)) for word in words)


def _unit_word(word: str) -> str:
    quoted = "".join(SPECIAL.get(character, character) for character in word.replace("%", "%%").replace("$", "$$"))
    quoted = quoted.replace("$${CREDENTIALS_DIRECTORY}", "${CREDENTIALS_DIRECTORY}")
    plain = quoted and all(character.isalnum() or character in "-_./:=,+@%${}" for character in quoted)
    return quoted if plain else f'"{quoted}"'


def unit_environment(variables: Mapping[str, Any]) -> list[str]:
    """Variables as the values of ``Environment=`` lines, sorted by name."""
    lines = []
    for name, value in sorted(variables.items()):
        text = str(value)
        if "\n" in text:
            raise AnsibleFilterError(
                f"the value of {name} has a line break, which an environment variable of a unit cannot have"
            )
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
        lines.append(f'"{name}={escaped}"')
    return lines


class FilterModule:
    """The filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"arguments": arguments, "unit_words": unit_words, "unit_environment": unit_environment}
