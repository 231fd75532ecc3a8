# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import base64
import hashlib
import os
import venv
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _patches
from ansible_collections.ddtree.fleet.plugins.module_utils._patches import (
    Baseline,
    PatchError,
    Verdict,
    assert_patches,
    find_environment,
    parse_files,
    parse_rules,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._record import (
    find_distribution,
    own_version,
    parse_record,
    same_version,
)

FILES = {
    "sglang/__init__.py": "from sglang.version import __version__\n",
    "sglang/version.py": (
        "try:\n    from sglang._version import __version__\nexcept ImportError:\n    __version__ = '0.0.0.dev0'\n"
    ),
    "sglang/_version.py": "version: str\n__version__: str\n__version__ = version = '0.5.11'\n",
    "sglang/srt/spec_info.py": "class Spec:\n    def is_dflash(self):\n        return True\n",
    "sglang/srt/other, and more.py": "x = 1\n",
    "tools/tag.py": "x = 1\n",
}


def recorded(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


class Fake:
    """A real virtual environment with a small distribution named sglang in it."""

    def __init__(self, root: Path, version: str = "0.5.11") -> None:
        venv.create(root, with_pip=False, symlinks=True)
        self.root = root
        (self.site,) = root.glob("lib/python3.*/site-packages")
        self.info = self.site / f"sglang-{version}.dist-info"
        self.info.mkdir()
        (self.info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\n\nVersion: 9\n")
        launcher = b"#!/root/venv/bin/python\nimport sglang\n"
        (root / "bin" / "sglang").write_bytes(launcher)
        self.lines = [f"../../../bin/sglang,{recorded(launcher)},{len(launcher)}"]
        for path, text in FILES.items():
            self.write(path, text)
            quoted = f'"{path}"' if "," in path else path
            self.lines.append(f"{quoted},{recorded(text.encode())},{len(text)}")
        self.lines += [
            f"{self.info.name}/RECORD,,",
            "sglang/__pycache__/version.cpython-312.pyc,,",
            "sglang/srt/,,",
            "",
        ]
        self.save()

    def save(self) -> None:
        (self.info / "RECORD").write_bytes("\r\n".join(self.lines).encode("utf-8", "surrogateescape"))

    def write(self, path: str, text: str) -> None:
        (self.site / path).parent.mkdir(parents=True, exist_ok=True)
        (self.site / path).write_bytes(text.encode())

    def look(
        self,
        files: Optional[List[str]] = None,
        checks: Optional[List[Dict[str, Any]]] = None,
        baseline: Optional[Baseline] = None,
        compile_files: bool = True,
        interpreter: Optional[str] = None,
    ) -> Verdict:
        environment = find_environment(str(self.root), None, interpreter)
        return assert_patches(environment, parse_files(files or []), parse_rules(checks or []), compile_files, baseline)


RECORD = Baseline("record", "sglang")
SPEC = "sglang/srt/spec_info.py"


@pytest.fixture(name="fake")
def fake_fixture(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "venv")


def failed(verdict: Verdict) -> List[str]:
    return [check.sentence() for check in verdict.checks if not check.passed]


def one_check(fake: Fake, text: str, **check: Any) -> Any:
    fake.write("sglang/one.py", text)
    return fake.look(checks=[{"file": "sglang/one.py", **check}]).checks[0]


@pytest.mark.parametrize(
    ("text", "check", "found", "line"),
    [
        ("aaaa", {"literal": "aa"}, "2", 1),
        ("\nx = (budget) + 1\n", {"literal": "budget) + 1"}, "1", 2),
        ("a = 1\r\nb = 2\r\n", {"literal": "1\nb"}, "1", 1),
        ("x = 12\ny = 3\n", {"regex": r"^y = \d+$"}, "1", 2),
        ("# f()\nx = 'def f(): f()'\n", {"defines": "f", "count": 0}, "0", 0),
        ("# f()\nx = 'def f(): f()'\n", {"calls": "f", "max": 0}, "0", 0),
        ("def f(): pass\nasync def g(): pass\nclass C:\n  def m(self): pass\n", {"defines": "m"}, "1", 4),
        ("if True:\n  class C:\n    def m(self): pass\n", {"defines": "C.m"}, "1", 3),
        ("class C:\n  def m(self): pass\ndef m(): pass\n", {"defines": "C.m", "count": 1}, "1", 2),
        ("class C:\n  def m(self): pass\ndef m(): pass\n", {"defines": "m", "count": 2}, "2", 2),
        ("x._sample(1)\ny[0]._sample(2)\n_sample(3)\n", {"calls": "_sample", "count": 3}, "3", 1),
        ("x._sample(1)\nself.x._sample(2)\n", {"calls": "x._sample", "count": 1}, "1", 1),
        ("f(g(h()))\n", {"calls": "h"}, "1", 1),
        ("print(f'{f()}')\n", {"calls": "f"}, "1", 1),
        ("@f\ndef g(): pass\n", {"calls": "f", "count": 0}, "0", 0),
        ("f()()\n", {"calls": "f", "count": 1}, "1", 1),
        ("x\ny\n", {"literal": "x", "count": "1"}, "1", 1),
        ("x = 7\n", {"literal": 7}, "1", 1),
    ],
)
def test_a_check_finds_what_is_there(fake: Fake, text: str, check: Dict[str, Any], found: str, line: int) -> None:
    result = one_check(fake, text, **check)
    assert (result.passed, result.found, result.line) == (True, found, line)


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ({"literal": "z"}, "literal 'z' in sglang/one.py: expected at least 1, found 0"),
        ({"literal": "x", "count": 3}, "literal 'x' in sglang/one.py:1: expected exactly 3, found 2 in lines 1, 3"),
        (
            {"literal": "x", "min": 3, "max": 4},
            "literal 'x' in sglang/one.py:1: expected 3 to 4, found 2 in lines 1, 3",
        ),
        (
            {"regex": "^x", "min": 0, "max": 1},
            "regex '^x' in sglang/one.py:1: expected at most 1, found 2 in lines 1, 3",
        ),
        (
            {"defines": "f", "name": "the patch", "hint": "copy it"},
            "the patch in sglang/one.py: expected at least 1, found 0 (copy it)",
        ),
        ({"calls": "f"}, "calls 'f' in sglang/one.py: expected at least 1, found 0"),
    ],
)
def test_a_failed_check_says_what_was_expected_and_found(fake: Fake, check: Dict[str, Any], said: str) -> None:
    assert one_check(fake, "x = 1\n# f()\nx = 2\n", **check).sentence() == said


def test_hints_are_for_failures(fake: Fake) -> None:
    assert one_check(fake, "x\n", literal="x", hint="copy it").hint == ""


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


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ({"literal": "x"}, "checks[1] (no file): file: a path relative to site-packages is needed"),
        ({"file": ".", "literal": "x"}, "checks[1] (.): file: a path relative to site-packages is needed"),
        (
            {"file": "/a.py", "literal": "x"},
            "checks[1] (/a.py): file: an absolute path; it must be relative to site-packages",
        ),
        (
            {"file": "a/../../b.py", "literal": "x"},
            "checks[1] (a/../../b.py): file: climbs out with '..'; it must be relative to site-packages",
        ),
        ({"file": "a\0.py", "literal": "x"}, "checks[1] (a\0.py): file: holds a NUL character"),
        ({"file": "a.py"}, "checks[1] (a.py): exactly one of literal, regex, defines, calls is needed, given: none"),
        (
            {"file": "a.py", "literal": "x", "calls": "f"},
            "checks[1] (a.py): exactly one of literal, regex, defines, calls is needed, given: literal, calls",
        ),
        (
            {"file": "a.py", "litteral": "x"},
            "checks[1] (a.py): unknown key litteral; "
            "known are file, literal, regex, defines, calls, count, min, max, name, hint",
        ),
        ({"file": "a.py", "literal": ""}, "checks[1] (a.py): literal: the text to look for is empty"),
        ({"file": "a.py", "literal": ["x"]}, "checks[1] (a.py): literal: ['x'] is no text"),
        (
            {"file": "a.py", "regex": "("},
            "checks[1] (a.py): regex: '(' is no regular expression: missing ), unterminated subpattern at position 0",
        ),
        ({"file": "a.py", "calls": "f("}, "checks[1] (a.py): calls: 'f(' is no name such as f, x.f or Class.method"),
        (
            {"file": "a.py", "defines": "C."},
            "checks[1] (a.py): defines: 'C.' is no name such as f, x.f or Class.method",
        ),
        ({"file": "a.py", "literal": "x", "count": -1}, "checks[1] (a.py): count: -1 is no number from 0 up"),
        ({"file": "a.py", "literal": "x", "min": "two"}, "checks[1] (a.py): min: 'two' is no number from 0 up"),
        ({"file": "a.py", "literal": "x", "max": True}, "checks[1] (a.py): max: True is no number from 0 up"),
        (
            {"file": "a.py", "literal": "x", "count": 1, "min": 1},
            "checks[1] (a.py): count is exact, so min and max cannot stand beside it",
        ),
        ({"file": "a.py", "literal": "x", "min": 3, "max": 2}, "checks[1] (a.py): min 3 is more than max 2"),
    ],
)
def test_a_malformed_check_is_named_by_index_and_file(check: Dict[str, Any], said: str) -> None:
    with pytest.raises(PatchError) as raised:
        parse_rules([{"file": "good.py", "literal": "x"}, check])
    assert str(raised.value) == said


def test_keys_without_a_value_do_not_count() -> None:
    (rule,) = parse_rules([{"file": "./a//b.py", "literal": "x", "regex": None, "count": None}])
    assert (rule.file, rule.kind, rule.least, rule.most) == ("a/b.py", "literal", 1, None)


def test_malformed_files_are_refused_and_doubles_dropped() -> None:
    assert parse_files(["a.py", "./a.py", "b"]) == ["a.py", "b"]
    with pytest.raises(
        PatchError, match=r"^files\[1\] \(/b\): an absolute path; it must be relative to site-packages$"
    ):
        parse_files(["a.py", "/b"])


def test_a_new_kind_is_one_function(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        _patches.KINDS, "ends", _patches.Kind(lambda source, wanted: [1] * source.text.endswith(wanted))
    )
    monkeypatch.setattr(_patches, "KEYS", (*_patches.KEYS, "ends"))
    assert one_check(fake, "x = 1\n", ends="1\n").passed


def test_environments_that_cannot_be_told(tmp_path: Path) -> None:
    def refused(root: Path, site: Optional[str] = None) -> str:
        with pytest.raises(PatchError) as raised:
            find_environment(str(root), site)
        return str(raised.value)

    root = tmp_path / "e"
    assert refused(root) == f"root {root}: no such directory"
    root.write_text("")
    assert refused(root) == f"root {root}: not a directory"
    root.unlink()
    root.mkdir()
    assert refused(root) == (
        f"root {root} has no lib/python3.*/site-packages; name an environment there, or its packages in site_packages"
    )
    assert refused(root, "packages") == f"site_packages {root}/packages: no such directory"
    for version in ("python3.11", "python3.12"):
        (root / "lib" / version / "site-packages").mkdir(parents=True)
    assert refused(root) == (
        f"root {root} has more than one lib/python3.*/site-packages: {root}/lib/python3.11/site-packages, "
        f"{root}/lib/python3.12/site-packages; choose one with site_packages"
    )
    chosen = find_environment(str(root), "lib/python3.12/site-packages")
    assert (chosen.site, chosen.interpreter) == (f"{root}/lib/python3.12/site-packages", f"{root}/bin/python")


def test_a_root_with_glob_characters(tmp_path: Path) -> None:
    site = tmp_path / "a[b]*" / "lib" / "python3.9" / "site-packages"
    site.mkdir(parents=True)
    assert find_environment(str(tmp_path / "a[b]*")).site == str(site)


def test_an_empty_declaration_is_refused(fake: Fake) -> None:
    with pytest.raises(PatchError, match="^nothing to assert: give files, checks or baseline$"):
        fake.look()


def test_an_untouched_distribution_equals_its_record(fake: Fake) -> None:
    fake.write("sglang/__pycache__/x.pyc", "")
    fake.write("sglang/old.pyc", "")
    fake.write("tools/of another.py", "")
    verdict = fake.look(baseline=RECORD)
    assert not failed(verdict)
    assert verdict.inventory == {
        "modified": [],
        "missing": [],
        "added": [],
        "counts": {"modified": 0, "missing": 0, "added": 0, "equal": len(FILES) + 1},
    }
    assert verdict.versions == {"dist_info": "0.5.11", "package": "0.5.11"}
    assert not verdict.warnings


def test_declared_differences_pass(fake: Fake) -> None:
    fake.write(SPEC, "class Spec: pass\n")
    fake.write("sglang/srt/ddtree_utils.py", "x = 1\n")
    verdict = fake.look([SPEC, "sglang/srt/ddtree_utils.py"], baseline=RECORD)
    assert not failed(verdict)
    assert verdict.inventory is not None
    assert (verdict.inventory["modified"], verdict.inventory["added"]) == ([SPEC], ["sglang/srt/ddtree_utils.py"])


def test_each_way_to_differ_from_the_declaration_fails(fake: Fake) -> None:
    fake.write("sglang/version.py", "x = 1\n")
    fake.write("sglang/srt/new.py", "x = 1\n")
    (fake.site / "sglang/link").symlink_to("srt")
    (fake.site / "tools/tag.py").unlink()
    (fake.root / "bin/sglang").unlink()
    assert failed(fake.look([SPEC], baseline=RECORD)) == [
        "undeclared: expected no undeclared file that differs from RECORD, "
        "found 3: sglang/link, sglang/srt/new.py, sglang/version.py "
        "(declare in files what belongs to the patch set, restore or remove the rest)",
        f"unmodified: expected every declared file to differ from RECORD, found 1: {SPEC} "
        "(these are the wheel's own: the patch is not applied)",
        "missing: expected every file of RECORD to be there, found 2: ../../../bin/sglang, tools/tag.py "
        "(reinstall the distribution and apply the patch set again)",
    ]


def test_many_names_are_bounded(fake: Fake) -> None:
    for number in range(250):
        fake.write(f"sglang/new{number:03}.py", "")
    verdict = fake.look(baseline=RECORD)
    assert verdict.inventory is not None
    assert len(verdict.inventory["added"]) == 200
    assert verdict.inventory["counts"]["added"] == 250
    assert "sglang/new009.py and 240 more" in failed(verdict)[0]


def test_a_declared_file_that_is_gone_is_said_once(fake: Fake) -> None:
    (fake.site / SPEC).unlink()
    assert [said.split(":")[0] for said in failed(fake.look([SPEC], baseline=RECORD))] == [f"declared file in {SPEC}"]


def test_names_that_are_not_utf8(fake: Fake) -> None:
    fake.write(os.fsdecode(b"sglang/\xff.py"), "x = 1\n")
    verdict = fake.look([os.fsdecode(b"sglang/\xff.py")], baseline=RECORD)
    assert not failed(verdict)
    assert verdict.inventory is not None
    assert verdict.inventory["added"] == ["sglang/\\xff.py"]


def test_launchers_may_name_another_interpreter(fake: Fake) -> None:
    (fake.root / "bin/sglang").write_text("#!/elsewhere/bin/python\nimport sglang\n")
    assert not failed(fake.look(baseline=RECORD))
    (fake.root / "bin/sglang").write_text("other data\n")
    assert "1: ../../../bin/sglang" in failed(fake.look(baseline=RECORD))[0]


def test_record_of_links_and_directories(fake: Fake) -> None:
    content = (fake.site / SPEC).read_bytes()
    (fake.site / SPEC).unlink()
    (fake.root / "cache").write_bytes(content)
    (fake.site / SPEC).symlink_to(fake.root / "cache")
    assert not failed(fake.look(baseline=RECORD))
    (fake.site / SPEC).unlink()
    (fake.site / SPEC).mkdir()
    assert f"1: {SPEC}" in failed(fake.look(baseline=RECORD))[0]


def test_odd_record_entries(fake: Fake) -> None:
    fake.write("sglang/no_hash.py", "x = 1\n")
    fake.write("sglang/md5.py", "x = 1\n")
    fake.write("sglang/sha512.py", "")
    sha512 = base64.urlsafe_b64encode(hashlib.sha512(b"").digest()).decode()
    fake.lines[:0] = [
        "sglang/no_hash.py,,",
        "sglang/md5.py,md5=abc,6",
        f"sglang/sha512.py,sha512={sha512},0",
        "../../../../outside,sha256=abc,1",
        "/etc/outside,sha256=abc,1",
        "sglang/gone_without_hash.py,,",
    ]
    fake.save()
    verdict = fake.look(["sglang/no_hash.py", "elsewhere.pth"], baseline=RECORD)
    assert [said for said in failed(verdict) if not said.startswith("declared file")] == [
        "missing: expected every file of RECORD to be there, found 1: sglang/gone_without_hash.py "
        "(reinstall the distribution and apply the patch set again)",
    ]
    assert verdict.warnings == [
        f"{name} is declared, but RECORD of sglang-0.5.11.dist-info has nothing to compare it with"
        for name in ("sglang/no_hash.py", "elsewhere.pth")
    ]


def baseline_failure(fake: Fake, distribution: str = "sglang") -> str:
    (said,) = failed(fake.look(baseline=Baseline("record", distribution)))
    start = f"baseline record of {distribution}: expected one RECORD in {fake.site}, found "
    assert said.startswith(start)
    return said[len(start) :]


def test_baselines_that_are_none(fake: Fake) -> None:
    record = fake.info / "RECORD"
    good = record.read_bytes()
    assert baseline_failure(fake, "torch") == (
        "no dist-info directory (torch is not installed there by pip or uv, so there is no RECORD to compare with)"
    )
    reinstall = "(reinstall the distribution, or compare with another baseline)"
    record.write_text("a,b,c,d\n")
    assert baseline_failure(fake) == f"sglang-0.5.11.dist-info/RECORD line 1 is not path,hash,size {reinstall}"
    record.write_text("")
    assert baseline_failure(fake) == f"sglang-0.5.11.dist-info/RECORD lists no file {reinstall}"
    record.write_text('a,,\n"b' + "x" * 200000 + '",,\n')
    assert baseline_failure(fake).startswith("sglang-0.5.11.dist-info/RECORD line 2 is no CSV: field larger")
    record.write_text("__editable__.sglang-0.5.11.pth,sha256=x,1\n")
    assert baseline_failure(fake) == (
        "sglang-0.5.11.dist-info of an editable install (its files are elsewhere; install the wheel)"
    )
    record.unlink()
    assert baseline_failure(fake) == (
        "sglang-0.5.11.dist-info without a RECORD (it was not installed from a wheel, so it cannot be compared with one)"
    )
    record.mkdir()
    assert baseline_failure(fake) == "sglang-0.5.11.dist-info/RECORD: Is a directory (read it as a user that may)"
    record.rmdir()
    record.write_bytes(good)
    (fake.site / "SGLang-0.5.9.dist-info").mkdir()
    assert baseline_failure(fake) == (
        "SGLang-0.5.9.dist-info, sglang-0.5.11.dist-info "
        "(remove those that are not the installed one; which RECORD counts cannot be told)"
    )


def test_a_package_copied_over_another_version_is_one_failure(tmp_path: Path) -> None:
    fake = Fake(tmp_path / "venv", version="0.5.9")
    for number in range(50):
        fake.write(f"sglang/new{number}.py", "")
    verdict = fake.look([SPEC], baseline=RECORD)
    assert failed(verdict) == [
        "version in sglang-0.5.9.dist-info: expected one version, found dist-info says 0.5.9, __version__ says 0.5.11 "
        "(the package directory was copied over another version; RECORD is no baseline here, "
        "install the wheel of the version that is meant)",
    ]
    assert verdict.inventory is None
    assert verdict.versions == {"dist_info": "0.5.9", "package": "0.5.11"}
    (said,) = failed(fake.look(baseline=Baseline("record", "sglang", "0.5.11")))
    assert "expected 0.5.11 in both, found dist-info says 0.5.9" in said


def test_another_version_than_declared_fails(fake: Fake) -> None:
    assert not failed(fake.look(baseline=Baseline("record", "sglang", "0.5.11")))
    assert failed(fake.look(baseline=Baseline("record", "sglang", "0.5.12"))) == [
        "version in sglang-0.5.11.dist-info: expected 0.5.12, found 0.5.11"
    ]


def test_a_version_that_is_stated_nowhere_is_a_warning(fake: Fake) -> None:
    fake.write("sglang/_version.py", "x = 1\n")
    verdict = fake.look(["sglang/_version.py"], baseline=Baseline("record", "sglang", "0.5.11"))
    assert not failed(verdict)
    assert verdict.warnings == [
        "sglang states no __version__ as a plain text, so only sglang-0.5.11.dist-info tells its version"
    ]


def test_the_version_of_a_package_is_read_without_importing(fake: Fake) -> None:
    distribution = find_distribution(str(fake.site), "SGLang")
    assert own_version(str(fake.site), distribution) == "0.5.11"
    (fake.site / "sglang/_version.py").unlink()
    assert own_version(str(fake.site), distribution) is None
    fake.write("sglang/__init__.py", "__version__: str = '1.0'\nraise SystemExit\n")
    assert own_version(str(fake.site), distribution) == "1.0"
    fake.write("sglang/version.py", "def broken(:\n")
    assert own_version(str(fake.site), distribution) == "1.0"


def test_the_dist_info_without_metadata_tells_its_version_by_name(fake: Fake) -> None:
    (fake.info / "METADATA").unlink()
    assert find_distribution(str(fake.site), "sglang").version == "0.5.11"


def test_a_distribution_of_one_module_has_a_record_too(fake: Fake) -> None:
    fake.write("six.py", "x = 1\n")
    info = fake.site / "six-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"six.py,{recorded(b'x = 1')},6\n")
    assert ["1: six.py" in said for said in failed(fake.look(baseline=Baseline("record", "six")))] == [True]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("0.5.11", "0.5.11", True),
        ("v0.5.11", "0.5.11", True),
        ("2.9.1", "2.9.1+cu130", True),
        ("2.9.1+cu128", "2.9.1+cu130", False),
        ("1.0-post1", "1.0.post1", True),
        ("0.5.9", "0.5.11", False),
    ],
)
def test_versions_compare_by_meaning(one: str, other: str, same: bool) -> None:
    assert same_version(one, other) is same


def test_record_of_quoted_names_and_line_ends() -> None:
    assert parse_record('"a ""b"",c.py",sha256=x,1\r\n./d.py,,\nrow\n') == {
        'a "b",c.py': "sha256=x",
        "d.py": "",
        "row": "",
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read_are_named(fake: Fake) -> None:
    (fake.site / "tools/tag.py").chmod(0)
    with pytest.raises(PatchError, match=f"^{fake.site}/tools/tag.py: Permission denied$"):
        fake.look(baseline=RECORD)
