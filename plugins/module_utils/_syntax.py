# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The syntax of files as the environment's own interpreter sees it, since the host's Python may be older or newer.

One process of that interpreter parses and compiles all files and answers in JSON. It imports nothing of the environment
(``-I -S``) and writes nothing (``-B``, and the compiled code is dropped).
"""

from __future__ import annotations

import json
import subprocess
from typing import Any, Dict, List, NamedTuple, Sequence

TIMEOUT_SECONDS = 300

# Runs in the environment's interpreter: a JSON list of paths on stdin, a JSON list of one object per path on stdout.
PROGRAM = r'''
import ast
import json
import sys
import warnings


def dotted(node):
    """A name: ``a.b.c`` as written, ``?.c`` where the part before it is no plain name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    elif parts:
        parts.append("?")
    return ".".join(reversed(parts))


def look_at(node, scope, found):
    """Note what one node does, and give the scope of the nodes in it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scope = scope + [node.name]
        found["defines"].append([".".join(scope), node.lineno])
    elif isinstance(node, ast.Call):
        found["calls"].append([dotted(node.func), node.lineno])
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        found["assigns"].append([".".join(scope + [node.id]), node.lineno])
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        found["assigns"].append([dotted(node), node.lineno])
    elif isinstance(node, ast.Import):
        found["imports"] += [[alias.name, node.lineno] for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        start = module + "." if node.module else module
        found["imports"] += [[module, node.lineno]] if node.module else []
        found["imports"] += [[start + alias.name, node.lineno] for alias in node.names]
    return scope


def walk(tree, found):
    """Without recursion, since what compiles may be nested deeper than Python calls may be."""
    todo = [(tree, [])]
    while todo:
        node, scope = todo.pop()
        scope = look_at(node, scope, found)
        bare = isinstance(node, ast.AnnAssign) and node.value is None
        todo += [(child, scope) for child in ast.iter_child_nodes(node) if not (bare and child is node.target)]


def look(path):
    found = {"error": "", "line": 0, "warnings": [], "defines": [], "calls": [], "assigns": [], "imports": []}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with open(path, "rb") as file:
                tree = compile(file.read(), path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
            compile(tree, path, "exec", dont_inherit=True)
            walk(tree, found)
        except SyntaxError as error:
            found["error"], found["line"] = str(error.msg), error.lineno or 0
        except (OSError, ValueError, OverflowError, MemoryError, RecursionError) as error:
            found["error"] = "%s: %s" % (type(error).__name__, error)
    if found["error"]:
        found.update(defines=[], calls=[], assigns=[], imports=[])
    found["warnings"] = [[str(warning.message), warning.lineno or 0] for warning in caught]
    return found


json.dump([look(path) for path in json.load(sys.stdin)], sys.stdout)
'''


class InterpreterError(Exception):
    """The interpreter gives no answer; the message says what it did instead."""


class Mark(NamedTuple):
    text: str
    line: int


class Syntax(NamedTuple):
    """What one file holds. ``error`` is empty when it compiles; a mark is a text and its line (0: unknown)."""

    error: str
    line: int
    warnings: List[Mark]
    defines: List[Mark]
    calls: List[Mark]
    assigns: List[Mark]
    imports: List[Mark]


def read_syntax(interpreter: str, paths: Sequence[str]) -> List[Syntax]:
    """The syntax of every file, in the order of ``paths``; raises InterpreterError when the interpreter does not answer."""
    command = [interpreter, "-I", "-B", "-S", "-c", PROGRAM]
    try:
        # The module's run_command has no time limit.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            command,
            input=json.dumps(list(paths)).encode(),
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            cwd="/",
            check=False,
        )
    except OSError as error:
        raise InterpreterError(f"{error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise InterpreterError(f"no answer within {TIMEOUT_SECONDS} s") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "backslashreplace").strip().splitlines()
        # An interpreter that cannot even start ends with an empty stack; the line before says why.
        why = [line for line in said if "error" in line.lower()] or said
        raise InterpreterError(f"exit status {done.returncode}" + (f", {why[-1].strip()}" if why else ""))
    try:
        return [_syntax(one) for one in json.loads(done.stdout.decode())]
    except (ValueError, KeyError, TypeError) as error:
        start = done.stdout[:80].decode("utf-8", "backslashreplace")
        raise InterpreterError(f"it answered {start!r}, which is no answer of Python's") from error


def _syntax(one: Dict[str, Any]) -> Syntax:
    marks = ([Mark(text, line) for text, line in one[key]] for key in Syntax._fields[2:])
    return Syntax(one["error"], one["line"], *marks)
