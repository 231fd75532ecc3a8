# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import MAX_FILE_BYTES, PatchError
from ansible_collections.ddtree.fleet.tests.unit.patched import SPEC, Fake, failed


@pytest.fixture(name="fake")
def fake_fixture(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "venv")


def test_every_file_that_is_not_there_is_named(fake: Fake) -> None:
    (fake.site / "sglang/dangling.py").symlink_to("nowhere")
    verdict = fake.look(["sglang/srt", "sglang/dangling.py", "srt/spec_info.py"], [{"file": "a.py", "calls": "f"}])
    hint = f"(files are relative to {fake.site})"
    assert failed(verdict) == [
        f"declared file in sglang/srt: expected a readable file, found a directory {hint}",
        f"declared file in sglang/dangling.py: expected a readable file, found a dangling link {hint}",
        f"declared file in srt/spec_info.py: expected a readable file, found No such file or directory {hint}",
        "calls 'f' in a.py: expected at least 1, found No such file or directory",
    ]


def test_a_fifo_is_not_waited_for(fake: Fake) -> None:
    os.mkfifo(fake.site / "pipe.py")
    assert "found no regular file" in failed(fake.look(["pipe.py"]))[0]


def test_what_no_text_is_as_large_as_is_not_read_but_hashed(fake: Fake) -> None:
    with open(fake.site / "sglang/large.bin", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    checks = [{"file": "sglang/large.bin", **check} for check in ({"literal": "x"}, {"sha256": "0" * 64})]
    literal, sha256 = fake.look(checks=checks).checks
    assert (literal.passed, literal.found) == (False, "larger than 64 MiB")
    assert re.fullmatch("[0-9a-f]{64}", sha256.found)


def test_a_syntax_error_gives_file_and_line_and_fails_what_needs_the_tree(fake: Fake) -> None:
    fake.write(SPEC, "x = 1\ndef f(:\n")
    said = failed(fake.look([SPEC], [{"file": SPEC, "defines": "f"}, {"file": SPEC, "literal": "def f"}]))
    assert said == [
        f"compiles in {SPEC}:2: expected no error, found invalid syntax",
        f"defines 'f' in {SPEC}: expected at least 1, found a file that does not compile: invalid syntax",
    ]


@pytest.mark.parametrize("text", ["return 1\n", "x = 1\n\0", "# -*- coding: none -*-\n", "\xe4 = b'\xe4'\n"])
def test_what_parses_but_does_not_compile_fails(fake: Fake, text: str) -> None:
    fake.write(SPEC, text)
    assert failed(fake.look([SPEC]))[0].startswith(f"compiles in {SPEC}")
    assert not failed(fake.look([SPEC], compile_files=False))


def test_only_python_files_are_compiled(fake: Fake) -> None:
    fake.write("sglang/data.json", "{")
    assert [check.name for check in fake.look(["sglang/data.json"]).checks] == ["declared file"]


def test_compiling_writes_nothing_and_imports_nothing(fake: Fake) -> None:
    fake.write("loud.pth", "import sys; sys.exit(3)\n")
    fake.write(SPEC, "raise SystemExit(4)\n")
    before = sorted(fake.root.rglob("*"))
    assert not failed(fake.look([SPEC], [{"file": SPEC, "calls": "SystemExit"}]))
    assert sorted(fake.root.rglob("*")) == before


def test_syntax_warnings_are_reported_and_do_not_fail(fake: Fake) -> None:
    fake.write(SPEC, "x = 1\nif x is 'a':\n    pass\n")
    verdict = fake.look([SPEC])
    assert not failed(verdict)
    assert len(verdict.warnings) == 1
    assert verdict.warnings[0].startswith(f'{SPEC}:2: "is" with ')


def test_warnings_are_bounded(fake: Fake) -> None:
    fake.write(SPEC, "1 is 'a'\n" * 60)
    shown = fake.look([SPEC]).shown_warnings()
    assert len(shown) == 51
    assert shown[-1] == "and 10 warnings more"


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("#!/nowhere/python\n", "No such file or directory"),
        ("#!/bin/sh\necho no encodings >&2; exit 1\n", "exit status 1, no encodings"),
        ("#!/bin/sh\nexit 127\n", "exit status 127"),
        (
            "#!/bin/sh\nprintf 'Fatal\\nModuleNotFoundError: encodings\\n\\nthread\\n <no frame>\\n' >&2\nexit 1\n",
            "exit status 1, ModuleNotFoundError: encodings",
        ),
        ("#!/bin/sh\ncat >/dev/null; echo hello\n", "it answered 'hello\\n', which is no answer of Python's"),
        ("#!/bin/sh\ncat >/dev/null; echo '[1]'\n", "it answered '[1]\\n', which is no answer of Python's"),
    ],
)
def test_an_interpreter_that_does_not_run_fails_clearly(fake: Fake, tmp_path: Path, text: str, found: str) -> None:
    interpreter = program(tmp_path / "python", text)
    said = failed(
        fake.look(
            [SPEC], [{"file": SPEC, "defines": "Spec"}, {"file": SPEC, "literal": "Spec"}], None, True, interpreter
        )
    )
    assert said == [
        f"interpreter in {interpreter}: expected it runs, found {found} "
        "(repair the environment's interpreter, or name one that can run here with interpreter)",
        f"defines 'Spec' in {SPEC}: expected at least 1, found nothing was looked at, since the interpreter does not run",
    ]


def test_an_interpreter_that_hangs_is_ended(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible_collections.ddtree.fleet.plugins.module_utils._syntax.TIMEOUT_SECONDS", 0.2)
    interpreter = program(tmp_path / "python", "#!/bin/sh\nexec sleep 60\n")
    assert "found no answer within 0.2 s" in failed(fake.look([SPEC], interpreter=interpreter))[0]


def test_no_interpreter_is_needed_where_nothing_is_parsed(fake: Fake) -> None:
    (fake.root / "bin/python").unlink()
    assert not failed(fake.look([SPEC], [{"file": SPEC, "literal": "Spec"}], compile_files=False))


def test_an_empty_declaration_is_refused(fake: Fake) -> None:
    with pytest.raises(PatchError, match="^nothing to assert: give files, checks, diffs, baseline or native$"):
        fake.look()
