# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import POLICIES, Baseline
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.verdict import Verdict
from ansible_collections.ddtree.fleet.tests.unit.packages import FILES as PACKAGE
from ansible_collections.ddtree.fleet.tests.unit.packages import Packages, found, outcomes
from ansible_collections.ddtree.fleet.tests.unit.patched import FILES, RECORD, SPEC, Fake, failed, recorded


@pytest.fixture(name="fake")
def fake_fixture(tmp_path: Path) -> Fake:
    return Fake(tmp_path / "venv")


def test_an_untouched_distribution_equals_its_record(fake: Fake) -> None:
    fake.write("sglang/__pycache__/x.pyc", "")
    fake.write("sglang/version.pyc", "")
    fake.write("other/of another.py", "")
    verdict = fake.look(baseline=RECORD)
    assert not failed(verdict)
    counts = {"modified": 0, "missing": 0, "added": 0, "unverified": 1}
    assert verdict.inventory == {
        "modified": [],
        "missing": [],
        "added": [],
        "unverified": [f"{fake.info.name}/RECORD"],
        "backups": [],
        "unmodified": [],
        "undeclared": {"modified": [], "added": [], "missing": []},
        "counts": {**counts, "backups": 0, "unmodified": 0, "equal": len(FILES) + 1},
        "distributions": [
            {
                "name": "sglang",
                "version": "0.5.11",
                "baseline": "RECORD of sglang-0.5.11.dist-info",
                "counts": {**counts, "equal": len(FILES) + 1},
            }
        ],
    }
    assert verdict.drift is None
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
        "modified: expected no undeclared file whose content differs from RECORD of sglang-0.5.11.dist-info, "
        "found 1: sglang/version.py "
        "(declare in files what belongs to the patch set, restore or remove the rest)",
        "added: expected no undeclared file that RECORD of sglang-0.5.11.dist-info does not have, "
        "found 2: sglang/link, sglang/srt/new.py "
        "(declare in files what belongs to the patch set, restore or remove the rest)",
        "missing: expected every file of RECORD of sglang-0.5.11.dist-info to be there, "
        "found 2: ../../../bin/sglang, tools/tag.py "
        "(reinstall the distribution and apply the patch set again)",
        f"unmodified: expected every declared file to differ from RECORD of sglang-0.5.11.dist-info, found 1: {SPEC} "
        "(these are as they were before: the patch is not applied)",
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
    fake.write("sglang/md4.py", "x = 1\n")
    fake.write("sglang/sha512.py", "")
    md5, sha256 = (base64.b64encode(hashlib.new(name, b"x = 1\n").digest()).decode() for name in ("md5", "sha256"))
    sha512 = base64.urlsafe_b64encode(hashlib.sha512(b"").digest()).decode()
    fake.lines[:0] = [
        "sglang/no_hash.py,,",
        f"sglang/md5.py,md5={md5},6",
        "sglang/md4.py,md4=abc,6",
        f"sglang/sha512.py,sha512={sha512},0",
        f"../../../../outside,sha256={sha256},1",
        f"/etc/outside,sha256={sha256},1",
        f"{fake.site}/tools/absolute.py,sha256={sha256},6",
        "sglang/gone_without_hash.py,,",
    ]
    fake.save()
    fake.write("tools/absolute.py", "x = 1\n")
    verdict = fake.look(["sglang/no_hash.py", "elsewhere.pth"], baseline=RECORD)
    assert [said for said in failed(verdict) if not said.startswith("declared file")] == [
        "missing: expected every file of RECORD of sglang-0.5.11.dist-info to be there, "
        "found 1: sglang/gone_without_hash.py "
        "(reinstall the distribution and apply the patch set again)",
    ]
    assert verdict.warnings == [
        "sglang/md4.py was not verified: RECORD of sglang-0.5.11.dist-info has it hashed by md4, which is not known",
        "RECORD of sglang-0.5.11.dist-info lists what is not in the environment and was not looked at: "
        "../../../../outside, /etc/outside",
    ] + [
        f"{name} is declared, but RECORD of sglang-0.5.11.dist-info has nothing to compare it with"
        for name in ("sglang/no_hash.py", "elsewhere.pth")
    ]


def baseline_failure(fake: Fake, distribution: str = "sglang") -> str:
    (said,) = failed(fake.look(baseline=Baseline("record", [distribution])))
    start = f"baseline record of {distribution}: expected one to compare with, found "
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
    record.write_text("__editable__.sglang-0.5.11.pth,,1\n")
    assert baseline_failure(fake) == (
        "sglang-0.5.11.dist-info of an editable install (its files are elsewhere; install the wheel)"
    )
    record.unlink()
    assert baseline_failure(fake) == (
        "sglang-0.5.11.dist-info without a RECORD (it was not installed from a wheel; "
        "compare with kind wheel or snapshot, or install it from a wheel)"
    )
    record.mkdir()
    assert baseline_failure(fake) == "sglang-0.5.11.dist-info/RECORD: Is a directory (read it as a user that may)"
    record.rmdir()
    record.write_bytes(good)
    (fake.site / "SGLang-0.5.9.dist-info").mkdir()
    assert baseline_failure(fake) == (
        "SGLang-0.5.9.dist-info, sglang-0.5.11.dist-info "
        "(remove those that are not the installed one; which counts cannot be told)"
    )


def test_a_package_copied_over_another_version_is_one_failure(tmp_path: Path) -> None:
    fake = Fake(tmp_path / "venv", version="0.5.9")
    for number in range(50):
        fake.write(f"sglang/new{number}.py", "")
    verdict = fake.look([SPEC], baseline=RECORD)
    assert failed(verdict) == [
        "version in sglang-0.5.9.dist-info: expected one version, found dist-info says 0.5.9, __version__ says 0.5.11 "
        "(the package directory was copied over another version; this is no baseline for it: "
        "install the wheel of the version that is meant, or compare with kind snapshot or backups)",
    ]
    assert verdict.inventory is None
    assert verdict.versions == {"dist_info": "0.5.9", "package": "0.5.11"}
    (said,) = failed(fake.look(baseline=Baseline("record", ["sglang"], "0.5.11")))
    assert "expected 0.5.11 in both, found dist-info says 0.5.9" in said


def test_another_version_than_declared_fails(fake: Fake) -> None:
    assert not failed(fake.look(baseline=Baseline("record", ["sglang"], "0.5.11")))
    assert failed(fake.look(baseline=Baseline("record", ["sglang"], "0.5.12"))) == [
        "version in sglang-0.5.11.dist-info: expected 0.5.12, found 0.5.11"
    ]


def test_a_version_that_is_stated_nowhere_is_a_warning(fake: Fake) -> None:
    fake.write("sglang/_version.py", "x = 1\n")
    verdict = fake.look(["sglang/_version.py"], baseline=Baseline("record", ["sglang"], "0.5.11"))
    assert not failed(verdict)
    assert verdict.warnings == [
        "sglang states no __version__ as a plain text, so only sglang-0.5.11.dist-info tells its version"
    ]


def test_a_distribution_of_one_module_has_a_record_too(fake: Fake) -> None:
    fake.write("six.py", "x = 1\n")
    info = fake.site / "six-1.0.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"six.py,{recorded(b'x = 1')},6\n")
    assert ["1: six.py" in said for said in failed(fake.look(baseline=Baseline("record", ["six"])))] == [True]


@pytest.fixture(name="packages")
def packages_fixture(tmp_path: Path) -> Packages:
    """One difference of each kind that a policy speaks of."""
    packages = Packages(tmp_path / "env")
    packages.install(files={**PACKAGE, "pkg/same.py": "", "pkg/gone.py": ""})
    packages.write("pkg/__init__.py", "__version__ = '2.0'\n")
    packages.write("pkg/new.py", "")
    packages.write("pkg/a.py.orig", "")
    (packages.site / "pkg/gone.py").unlink()
    return packages


COMPARED = ("modified", "added", "missing", "unmodified", "backups")


@pytest.mark.parametrize("what", POLICIES)
def test_a_policy_is_for_one_kind_of_finding(packages: Packages, what: str) -> None:
    others = {other: "ignore" for other in POLICIES if other != what}

    def look(level: str) -> Verdict:
        return packages.compare("record", files=["pkg/same.py"], policy={**others, what: level})

    (said,) = failed(look("fail"))
    assert said.startswith(what)
    warned = look("warn")
    assert (failed(warned), [check.name for check in warned.checks], len(warned.warnings)) == ([], [what], 1)
    assert warned.warnings == [said]
    ignored = look("ignore")
    assert (ignored.checks, ignored.warnings, ignored.inventory) == ([], [], warned.inventory)


@pytest.mark.parametrize("level", ["fail", "warn"])
def test_a_policy_without_findings_passes_silently(tmp_path: Path, level: str) -> None:
    packages = Packages(tmp_path)
    packages.install()
    verdict = packages.compare("record", policy=dict.fromkeys(POLICIES, level))
    assert (outcomes(verdict), verdict.warnings) == (dict.fromkeys(COMPARED, True), [])


def test_the_policy_that_is_not_given_fails_all(packages: Packages) -> None:
    assert [said.split(" ")[0] for said in failed(packages.compare("record"))] == ["version"]
    verdict = packages.compare("record", files=["pkg/same.py"], policy={"version": "warn"})
    assert {name: passed for name, passed in outcomes(verdict).items() if name != "version"} == dict.fromkeys(
        COMPARED, False
    )
    assert verdict.inventory is not None
    assert verdict.inventory["undeclared"] == {
        "modified": ["pkg/__init__.py"],
        "added": ["pkg/new.py"],
        "missing": ["pkg/gone.py"],
    }


def test_several_distributions_in_one_go(packages: Packages) -> None:
    packages.install("other", files={"other/__init__.py": ""})
    packages.write("other/new.py", "")
    packages.write("stray.py", "")
    verdict = packages.compare("record", ["other", "gone", "PKG"], policy={"version": "ignore"})
    assert found(verdict) == {
        "modified": ["pkg/__init__.py"],
        "missing": ["pkg/gone.py"],
        "added": ["other/new.py", "pkg/new.py"],
        "backups": ["pkg/a.py.orig"],
    }
    assert "baseline record of gone" in failed(verdict)[0]
    assert verdict.versions is None
    assert verdict.inventory is not None
    assert [one["name"] for one in verdict.inventory["distributions"]] == ["pkg", "other"]
    whole = packages.compare("record", "all", policy={"version": "ignore"})
    assert found(whole, "added") == {"added": ["other/new.py", "pkg/new.py", "stray.py"]}


def test_of_several_only_those_with_other_files_are_of_another_version(packages: Packages) -> None:
    packages.install("stale", files={"stale/__init__.py": "__version__ = '0.1'\n"})
    packages.install("other", files={"other/__init__.py": ""})
    for names in (["pkg", "stale", "other"], "all"):
        verdict = packages.compare("record", names)
        (said,) = [one for one in failed(verdict) if one.startswith("version")]
        assert "found 1: pkg-1.0.dist-info (__version__ says 2.0)" in said
        assert found(verdict) == {}
    warned = packages.compare("record", "all", policy={"version": "warn"})
    assert found(warned, "modified") == {"modified": ["pkg/__init__.py"]}
    assert outcomes(warned)["version"] is True
    packages.install()
    for name in ("new.py", "same.py", "a.py.orig"):
        (packages.site / "pkg" / name).unlink()
    assert failed(packages.compare("record", "all")) == []


def test_compiled_files_that_stand_alone_count(tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    packages.install(files={**PACKAGE, "pkg/old.pyc": "listed"})
    packages.write("pkg/a.pyc", "")
    assert found(packages.compare("record")) == {}
    packages.write("pkg/evil.pyc", "")
    packages.write("pkg/old.pyc", "changed")
    assert found(packages.compare("record")) == {"modified": ["pkg/old.pyc"], "added": ["pkg/evil.pyc"]}


def test_what_no_environment_needs_is_named(packages: Packages) -> None:
    os.mkfifo(packages.site / "pkg/pipe")
    with pytest.raises(PatchError, match=f"^{packages.site}/pkg/pipe is a FIFO, which no environment needs"):
        packages.compare("record", policy={"version": "ignore"})


def test_what_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    packages, name = Packages(tmp_path), "x" * 300
    info = packages.install()
    packages.record(info, [[f"pkg/{name}", recorded(b""), ""]])
    with pytest.raises(PatchError, match=f"^{packages.site}/pkg/{name}: File name too long$"):
        packages.compare("record")
