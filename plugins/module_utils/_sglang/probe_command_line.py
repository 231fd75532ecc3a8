# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The service's command line, parsed by the release's own parser: a step of environment_probe.py."""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
from typing import Any, Dict, List, NoReturn, Optional, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.probe_report import (
    Found,
    Report,
    Step,
    error_text,
    failed,
    raised_at,
    result,
    short,
)

PARSER_MODULE = "sglang.srt.server_args"
_UNPATCHED = "a flag or choice of the patch set that is unknown means an unpatched build"
_KINDS = {"int": "a whole number", "float": "a number", "str": "a text"}


class _Refused(Exception):
    """What argparse would have printed before it ended the program."""


class _Parser(argparse.ArgumentParser):
    """Raises where argparse ends the program."""

    def error(self, message: str) -> NoReturn:
        raise _Refused(message)

    def exit(self, status: int = 0, message: Optional[str] = None) -> NoReturn:
        raise _Refused(message or "an argument ends the server instead of starting it")


def command_line_step(request: Dict[str, Any], report: Report) -> Step:
    if request["command_line"]:
        yield "command line", lambda: _command_line(request["command_line"], report)


def _command_line(arguments: List[str], report: Report) -> Found:
    expected = "accepted by this build's own parser"
    try:
        server_args = importlib.import_module(PARSER_MODULE).ServerArgs
        parser = _Parser(prog="sglang")
        server_args.add_cli_args(parser)
    except BaseException as error:
        return failed(expected, f"the parser cannot be built: {error_text(error)}", raised_at(error))
    arguments, configs = _without_config(arguments)
    if configs:
        report.not_verified.append(
            f"arguments in --config {', '.join(configs)}: the file is the service's own and was not read"
        )
        for action in parser._actions:
            action.required = False
    try:
        parsed = vars(parser.parse_args(arguments))
    except _Refused as refused:
        return failed(expected, short(str(refused), 400), _way_out(str(refused), parser))
    except BaseException as error:
        return failed(expected, error_text(error))
    defaults = {action.dest: action.default for action in parser._actions}
    report.details["server_arguments"] = {
        name: _plain(value) for name, value in parsed.items() if value != defaults.get(name) and name in defaults
    }
    return result(True, expected, f"{len(report.details['server_arguments'])} settings differ from the defaults")


def _without_config(arguments: List[str]) -> Tuple[List[str], List[str]]:
    kept: List[str] = []
    files: List[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--config":
            files.append(next(rest, "(no file named)"))
        elif argument.startswith("--config="):
            files.append(argument.partition("=")[2])
        else:
            kept.append(argument)
    return kept, files


def _way_out(message: str, parser: argparse.ArgumentParser) -> str:
    """What the user can do about a refusal of argparse: the nearest flag or choice, or what the flag takes."""
    if message.startswith("unrecognized arguments"):
        return "; ".join([*_nearest_flags(message, parser), _UNPATCHED])
    named = re.match(r"argument ([^:]+): (.*)", message, re.DOTALL)
    actions = parser._option_string_actions
    action = next((actions[flag] for flag in named.group(1).split("/") if flag in actions), None) if named else None
    if action is None or named is None:
        return ""
    flag = max(action.option_strings, key=len)
    reason = named.group(2)
    if "invalid choice" in reason:
        choices = [str(choice) for choice in action.choices or ()]
        given = re.search(r"invalid choice: '?([^'(]*?)'? \(", reason)
        near = difflib.get_close_matches(given.group(1).strip(), choices, n=1, cutoff=0.5) if given else []
        return "; ".join(([f"nearest choice: {near[0]}"] if near else []) + [_UNPATCHED])
    if "ignored explicit argument" in reason:
        return f"{flag} is a switch and takes no value"
    kind = getattr(action.type or str, "__name__", "")
    return f"{flag} takes {_KINDS.get(kind, f'a value for {kind}' if kind else 'a value')}"


def _nearest_flags(message: str, parser: argparse.ArgumentParser) -> List[str]:
    known = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    hints = []
    for word in message.partition(":")[2].split():
        if word.startswith("--"):
            near = difflib.get_close_matches(word.partition("=")[0], known, n=1)
            hints.append(f"nearest to {word.partition('=')[0]}: {near[0]}" if near else f"nothing is near to {word}")
    return hints


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else short(repr(value))
