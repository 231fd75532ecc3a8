# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import shlex
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.ddtree.fleet.plugins.filter.command_line import (
    FilterModule,
    arguments,
    unit_environment,
    unit_words,
)


def test_options_become_words() -> None:
    options = {
        "tp-size": 8,
        "enable-metrics": True,
        "log-level": "info",
        "lora-paths": ["a", "b"],
        "mem-fraction-static": 0.85,
    }
    assert shlex.join(arguments(options)) == (
        "--tp-size 8 --enable-metrics --log-level info --lora-paths a b --mem-fraction-static 0.85"
    )


@pytest.mark.parametrize("value", [None, False, "", []])
def test_what_is_off_is_left_out(value: Any) -> None:
    assert arguments({"x": value, "zero": 0}) == ["--zero", "0"]


def test_wrong_options_are_named() -> None:
    with pytest.raises(AnsibleFilterError, match="write the option --tp-size without its dashes"):
        arguments({"--tp-size": 8})
    with pytest.raises(AnsibleFilterError, match="needs a mapping of options, not list"):
        arguments(["--tp-size"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("--tp-size", "--tp-size"),
        ("two words", '"two words"'),
        ("", '""'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('{"a": "b\\c"}', '"{\\"a\\": \\"b\\\\c\\"}"'),
        ("it's", '"it\'s"'),
        (";", '";"'),
        ("line\nbreak", '"line\\nbreak"'),
        ("${CREDENTIALS_DIRECTORY}/key", "${CREDENTIALS_DIRECTORY}/key"),
        ("${OTHER}", "$${OTHER}"),
        (8, "8"),
    ],
)
def test_words_of_a_unit_are_taken_literally(word: Any, line: str) -> None:
    assert unit_words(["/bin/run", word]) == f"/bin/run {line}"


def test_variables_of_a_unit_are_sorted_and_quoted() -> None:
    assert unit_environment({"B": 'say "hi" 5%', "A": "two words", "C": "back\\slash", "D": 1}) == [
        '"A=two words"',
        '"B=say \\"hi\\" 5%%"',
        '"C=back\\\\slash"',
        '"D=1"',
    ]
    with pytest.raises(AnsibleFilterError, match="the value of KEY has a line break"):
        unit_environment({"KEY": "a\nb"})


def test_they_work_on_the_values_that_templates_hold() -> None:
    variables = {"options": {"tp-size": trust_as_template("{{ 4 * 2 }}"), "on": True, "names": ["a b"]}}
    options = Templar(DataLoader(), variables=variables).template(trust_as_template("{{ options }}"))
    assert set(FilterModule().filters()) == {"arguments", "unit_words", "unit_environment"}
    assert unit_words(arguments(options)) == '--tp-size 8 --on --names "a b"'
