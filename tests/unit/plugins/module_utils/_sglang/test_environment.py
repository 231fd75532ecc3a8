# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real virtual environments, with small packages in SGLang's place."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import environment
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.gate import GateError
from ansible_collections.ddtree.fleet.tests.unit.sglang_environments import (
    failed,
    gate,
    make,
    site_of,
    with_gpus,
    write,
)


@pytest.fixture(scope="module", name="built")
def built_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("built") / "venv")


@pytest.fixture(scope="module", name="kernels")
def kernels_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_gpus(make(tmp_path_factory.mktemp("kernels") / "venv"))


def test_a_sound_environment_passes_and_nothing_is_written(built: Path) -> None:
    before = sorted(str(path) for path in built.rglob("*"))
    result = gate(
        built,
        distribution="sglang",
        version="0.5.11",
        imports=["sglang.srt.server_args"],
        probes=[
            {
                "imports": ["sglang.srt.spec_info"],
                "expression": 'sglang.srt.spec_info.SpeculativeAlgorithm.from_string("DDTREE").is_ddtree()',
                "equals": True,
            }
        ],
        command_line=["--model-path", "/m", "--speculative-algorithm", "DDTREE", "--enable-metrics"],
    )
    assert failed(result) == {}
    assert [check.name.split()[0] for check in result.checks] == [
        "version",
        "requirements",
        "import",
        "probe",
        "command",
    ]
    assert result.details["server_arguments"] == {
        "model_path": "/m",
        "speculative_algorithm": "DDTREE",
        "enable_metrics": True,
    }
    assert any("an old spelling" in remark for remark in result.remarks)
    assert result.figures["seconds"] > 0
    assert result.figures["memory_mib"] > 0
    assert sorted(str(path) for path in built.rglob("*")) == before


def everything_below(*folders: Path) -> Dict[str, Tuple[int, int, int]]:
    """Each path with size, time and mode, so that anything written there is seen."""
    paths = [path for folder in folders for path in [folder, *folder.rglob("*")]]
    stats = {str(path): path.lstat() for path in paths}
    return {path: (found.st_size, found.st_mtime_ns, found.st_mode) for path, found in stats.items()}


def test_packages_that_write_wherever_they_may_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOME, the folder for temporary files and the environment are what they were, bytecode and caches included."""
    built = make(tmp_path / "venv")
    write(
        site_of(built) / "writes.py",
        "import os, pathlib, tempfile, sglang.srt.spec_info\n"
        "tempfile.mkdtemp()\nopen('/proc/self/oom_score_adj').read() == '1000\\n' or os._exit(3)\n"
        "for name, value in list(os.environ.items()):\n"
        "    if name.endswith(('_DIR', '_HOME', '_PATH', '_BASE', 'HOME', 'MPLCONFIGDIR')):\n"
        "        pathlib.Path(value, 'cache').mkdir(parents=True, exist_ok=True)\n"
        "        pathlib.Path(value, 'cache', name).write_text('cached')\n"
        "pathlib.Path.home().joinpath('.config').mkdir(exist_ok=True)\n",
    )
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = everything_below(built, home)
    cache = {"TRITON_CACHE_DIR": f"{home}/.triton", "TORCH_HOME": f"{home}/.torch"}
    assert failed(gate(built, imports=["writes"], environment=cache)) == {}
    assert everything_below(built, home) == before
    assert list(temporary.iterdir()) == []


def test_no_room_for_the_caches_is_one_clear_error(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(GateError, match="no folder for the gate's caches can be made in /nowhere: .*No such file"):
        gate(built)


def test_caches_and_home_are_private_and_gone_afterwards(built: Path) -> None:
    expression = "[__import__('os').environ[name] for name in ('HOME', 'TMPDIR', 'TRITON_CACHE_DIR', 'MY_OWN')]"
    result = gate(
        built,
        probes=[{"expression": expression, "equals": 0}],
        environment={"MY_OWN": "kept", "TRITON_CACHE_DIR": "/var/cache/triton"},
    )
    home, temporary, triton, own = eval(failed(result)[f"probe {expression}"])
    assert home == temporary == triton
    assert home != os.environ["HOME"]
    assert own == "kept"
    assert not os.path.exists(home)


def test_another_version_and_metadata_that_disagrees(tmp_path: Path) -> None:
    copied_over = make(tmp_path / "venv", version="0.5.11", metadata_version="0.5.9")
    result = gate(copied_over, distribution="sglang", version="0.5.11", requirements=False)
    assert failed(result) == {}
    assert any("its metadata says 0.5.9, its code says 0.5.11" in remark for remark in result.remarks)
    assert failed(gate(copied_over, distribution="sglang", version="0.5.12", requirements=False)) == {
        "version": "sglang 0.5.11"
    }
    assert (
        failed(gate(copied_over, distribution="nothing", version="1"))["version"]
        == "no distribution nothing is installed"
    )


def test_missing_requirements_are_named_in_one_check(tmp_path: Path) -> None:
    bare = make(tmp_path / "venv")
    metadata = site_of(bare) / "sglang-0.5.11.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text() + "Requires-Dist: soundfile==0.13.1\nRequires-Dist: Odd_Name\n")
    result = gate(bare, distribution="sglang")
    assert failed(result) == {"requirements": "missing: Odd_Name, soundfile"}
    assert failed(gate(bare, distribution="sglang", requirements_ignore=["odd-name", "Soundfile"])) == {}
    assert failed(gate(bare, distribution="sglang", requirements=False)) == {}


def test_another_version_of_a_requirement_is_a_remark(tmp_path: Path) -> None:
    old = make(tmp_path / "venv")
    site = site_of(old)
    (site / "small_package-2.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: small_package\nVersion: 1.0\n"
    )
    result = gate(old, distribution="sglang")
    assert failed(result) == {}
    assert "sglang asks for small-package>=2, 1.0 is installed" in result.remarks


def test_without_packaging_markers_are_not_verified(tmp_path: Path) -> None:
    bare = make(tmp_path / "venv")
    shutil.rmtree(site_of(bare) / "packaging")
    result = gate(bare, distribution="sglang")
    assert failed(result) == {}
    assert any("no packaging module" in text for text in result.not_verified)


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("sglang.srt.nowhere", "ModuleNotFoundError: No module named 'sglang.srt.nowhere'"),
        ("sglang.srt.broken", "ImportError: no sm100 kernels <- ImportError: undefined symbol: _ZN2at4"),
        ("sglang.srt.leaves", "SystemExit: leaving"),
    ],
)
def test_imports_that_fail_show_the_real_error(built: Path, module: str, found: str) -> None:
    assert failed(gate(built, imports=[module, "sglang.srt.server_args"])) == {f"import {module}": found}


@pytest.mark.parametrize(
    ("module", "found", "last_words"),
    [
        ("sglang.srt.exits", "exit status 7", "bye"),
        ("sglang.srt.segfaults", "ended by SIGSEGV", "Segmentation fault"),
    ],
)
def test_a_crash_is_one_check_with_the_last_words(built: Path, module: str, found: str, last_words: str) -> None:
    result = gate(built, imports=["sglang.srt.server_args", module, "sglang.srt.spec_info"])
    assert failed(result) == {f"import {module}": found}
    assert last_words in result.checks[-1].hint
    assert result.not_verified == [f"everything after the step 'import {module}'"]


@pytest.mark.slow
def test_a_hang_ends_in_time_and_shows_where(built: Path) -> None:
    started = time.monotonic()
    result = gate(built, imports=["sglang.srt.hangs"], timeout=2)
    assert time.monotonic() - started < 6
    assert failed(result) == {"import sglang.srt.hangs": "no end within the gate's 2 s"}
    assert "hangs.py" in result.checks[-1].hint


@pytest.mark.parametrize(
    ("probe", "expected", "found"),
    [
        ({"expression": "1 + 1", "equals": 3}, "3", "2"),
        ({"expression": "1", "equals": True}, "True", "1"),
        ({"expression": "[]"}, "a true value", "[]"),
        ({"expression": "1 +"}, "a true value", "SyntaxError: "),
        ({"expression": "nothing"}, "a true value", "NameError: name 'nothing' is not defined"),
        ({"expression": "1", "imports": ["nowhere"]}, "a true value", "ModuleNotFoundError: No module named 'nowhere'"),
        ({"expression": "'x' * 5000", "equals": "y"}, "'y'", "'xxx"),
    ],
)
def test_probes_that_fail(built: Path, probe: Dict[str, Any], expected: str, found: str) -> None:
    check = gate(built, probes=[probe]).checks[0]
    assert not check.passed
    assert check.expected == expected
    assert check.found.startswith(found)
    assert len(check.found) <= 400


def test_probes_that_pass(built: Path) -> None:
    probes: List[Dict[str, Any]] = [{"expression": "(1, 'a')", "equals": [1, "a"]}, {"expression": "5"}]
    assert failed(gate(built, probes=probes)) == {}


@pytest.mark.parametrize(
    ("probe", "passed", "expected", "found"),
    [
        ({"args": ["DDTREE"], "matches": "^a DDTREE$"}, True, "matches ^a DDTREE$", "'a DDTREE'"),
        (
            {"args": ["DDTREE"], "kwargs": {"article": "the"}, "equals": "the DDTREE"},
            True,
            "'the DDTREE'",
            "'the DDTREE'",
        ),
        ({"args": ["DFLASH"], "matches": "DDTREE"}, False, "matches DDTREE", "'a DFLASH'"),
        (
            {"args": ["X"], "equals": "a X", "matches": "DDTREE"},
            False,
            "'a X' and matches DDTREE",
            "'a X'",
        ),
        ({"args": []}, False, "a true value", "TypeError: named() missing 1 required positional argument: 'name'"),
    ],
)
def test_a_probe_can_be_a_call(built: Path, probe: Dict[str, Any], passed: bool, expected: str, found: str) -> None:
    write(site_of(built) / "calls" / "deep.py", "class Tree:\n    @staticmethod\n    def named(name, article='a'):\n")
    with (site_of(built) / "calls" / "deep.py").open("a") as file:
        file.write("        return f'{article} {name}'\n")
    write(site_of(built) / "calls" / "__init__.py", "")
    check = gate(built, probes=[{"call": "calls.deep.Tree.named", **probe}]).checks[0]
    assert (check.passed, check.expected) == (passed, expected)
    assert check.found.replace("Tree.", "") == found
    assert check.name.startswith("probe calls.deep.Tree.named(")


@pytest.mark.parametrize(
    ("symbol", "found", "hint"),
    [
        ("sgl_kernel.tree_speculative_sampling_target_only", None, ""),
        ("sglang.srt.spec_info.SpeculativeAlgorithm.from_string", None, ""),
        (
            "sgl_kernel.tree_speculative_sampling",
            "module sgl_kernel has no attribute and no submodule tree_speculative_sampling",
            "nearest to tree_speculative_sampling: tree_speculative_sampling_target_only",
        ),
        (
            "sglang.srt.spec_info.SpeculativeAlgorithm.is_ddtre",
            "type sglang.srt.spec_info.SpeculativeAlgorithm has no attribute is_ddtre",
            "nearest to is_ddtre: is_ddtree",
        ),
        ("sgl_kernal.x", "there is no module sgl_kernal", "nearest to sgl_kernal: sgl_kernel"),
        ("sglang.srt.spec_inf.x", "module sglang.srt has no attribute and no submodule spec_inf", "spec_info"),
        ("sglang.srt.broken.x", "ImportError: no sm100 kernels <- ImportError: undefined symbol: _ZN2at4", "broken.py"),
        ("sgl_kernel.optional", "is None", "an optional import of that package failed"),
        ("zzzzzz", "there is no module zzzzzz", "nothing is near to zzzzzz"),
    ],
)
def test_symbols(kernels: Path, symbol: str, found: Optional[str], hint: str) -> None:
    check = gate(kernels, symbols=[symbol]).checks[0]
    assert check.name == f"symbol {symbol}"
    assert (check.passed, check.found) == ((True, "there") if found is None else (False, found))
    assert hint in check.hint


def test_warnings_of_imports_are_remarks_and_fail_nothing(tmp_path: Path) -> None:
    """As torchao has one: an escape that Python will once refuse."""
    built = make(tmp_path / "venv")
    write(site_of(built) / "torchao.py", "PATTERN = '\\d+'\n")
    result = gate(built, imports=["torchao"])
    assert failed(result) == {}
    assert any(re.match(r"(Syntax|Deprecation)Warning: .*invalid escape sequence", text) for text in result.remarks)


@pytest.mark.slow
def test_a_gate_that_takes_too_much_memory_is_ended(built: Path) -> None:
    write(
        site_of(built) / "greedy.py",
        "import time\nkept = bytearray(300 << 20)\nkept[::4096] = b'x' * len(kept[::4096])\ntime.sleep(60)\n",
    )
    result = gate(built, imports=["greedy"], memory_limit_mib=200)
    assert list(failed(result)) == ["import greedy"]
    assert re.match(r"ended at \d{3} MiB of memory, memory_limit is 200 MiB", failed(result)["import greedy"])
    assert result.not_verified == ["everything after the step 'import greedy'"]


@pytest.mark.parametrize(
    ("arguments", "found", "hint"),
    [
        (
            ["--speculative-ddtree-budgett", "8"],
            "unrecognized arguments: --speculative-ddtree-budgett 8",
            "nearest to --speculative-ddtree-budgett: --speculative-ddtree-budget;",
        ),
        (["--zzz"], "unrecognized arguments: --zzz", "nothing is near to --zzz"),
        (["--speculative-algorithm", "TREE"], "invalid choice: 'TREE'", "nearest choice: DDTREE; a flag or choice"),
        (["--speculative-algorithm", "zzz"], "invalid choice: 'zzz'", "that is unknown means an unpatched build"),
        (["--speculative-ddtree-budget", "many"], "invalid int value: 'many'", "-ddtree-budget takes a whole number"),
        (["--speculative-ddtree-budget"], "expected one argument", "--speculative-ddtree-budget takes a whole number"),
        (["--enable-metrics=yes"], "ignored explicit argument", "--enable-metrics is a switch and takes no value"),
    ],
)
def test_a_refused_command_line_says_why(built: Path, arguments: List[str], found: str, hint: str) -> None:
    check = gate(built, command_line=["--model-path", "/m", *arguments]).checks[0]
    assert not check.passed
    assert found in check.found
    assert hint in check.hint


def test_a_missing_required_argument_fails_unless_a_config_file_may_hold_it(built: Path) -> None:
    assert "--model-path" in failed(gate(built, command_line=["--enable-metrics"]))["command line"]
    result = gate(built, command_line=["--config", "${CREDENTIALS_DIRECTORY}/key.yml", "--enable-metrics"])
    assert failed(result) == {}
    assert "${CREDENTIALS_DIRECTORY}/key.yml" in result.not_verified[0]


def test_a_build_without_the_parser_fails(tmp_path: Path) -> None:
    bare = make(tmp_path / "venv")
    (site_of(bare) / "sglang" / "srt" / "server_args.py").unlink()
    assert "the parser cannot be built" in failed(gate(bare, command_line=["--model-path", "/m"]))["command line"]


def test_environments_that_are_none(tmp_path: Path, built: Path) -> None:
    with pytest.raises(GateError, match="is no directory: there is no environment"):
        gate(tmp_path / "nowhere")
    with pytest.raises(GateError, match="bin/python does not exist"):
        gate(tmp_path)
    dead = tmp_path / "dead"
    write(dead / "bin" / "nothing", "")
    (dead / "bin" / "python").symlink_to("/nowhere/python3")
    with pytest.raises(GateError, match="cannot be run: No such file or directory"):
        gate(dead)


def can_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], check=False).returncode == 0


needs_mount = pytest.mark.skipif(not can_mount(), reason="needs root and mount namespaces")


@pytest.fixture(scope="module", name="releases")
def releases_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``old`` and ``new``, whose .pth names an absolute path below the place ``dest`` where they are used."""
    store = tmp_path_factory.mktemp("store")
    for name, version in (("old", "0.5.10"), ("new", "0.5.11")):
        site = site_of(make(store / name, version=version))
        shutil.move(str(site / "sglang"), str(store / name / "sources" / "sglang"))
        write(site / "sources.pth", f"{store}/dest/sources\n")
    return store


@needs_mount
@pytest.mark.parametrize("before", ["absent", "link", "directory"])
def test_a_staged_release_is_looked_at_under_dest(releases: Path, before: str) -> None:
    dest = releases / "dest"
    if before == "link":
        dest.symlink_to(releases / "old")
    elif before == "directory":
        shutil.copytree(releases / "old", dest, symlinks=True)
    inode = os.lstat(dest).st_ino if before != "absent" else None
    try:
        result = gate(dest, release=str(releases / "new"), distribution="sglang", version="0.5.11")
        assert failed(result) == {}
        assert result.subject == str(releases / "new")
        assert (os.lstat(dest).st_ino if os.path.lexists(dest) else None) == inode
        if before != "absent":
            assert failed(gate(dest, distribution="sglang", version="0.5.11")) == {"version": "sglang 0.5.10"}
    finally:
        if before == "link":
            dest.unlink()
        elif before == "directory":
            shutil.rmtree(dest)
    assert str(dest) not in Path("/proc/self/mountinfo").read_text()


@needs_mount
def test_a_staged_release_cannot_be_written(releases: Path) -> None:
    path = f"{releases}/dest/written"
    expression = f"open({path!r}, 'w')"
    result = gate(releases / "dest", release=str(releases / "new"), probes=[{"expression": expression}])
    assert "Read-only file system" in failed(result)[f"probe {expression}"]
    assert not (releases / "dest").exists()


@needs_mount
def test_a_killed_gate_leaves_no_mount_point(releases: Path) -> None:
    collections = Path(__file__).resolve().parents[5] / ".collections"
    options = {
        "release": str(releases / "new"),
        "imports": ["time"],
        "probes": [{"expression": "__import__('time').sleep(60)"}],
    }
    program = (
        f"import sys; sys.path.insert(0, {str(collections)!r})\nimport pathlib\n"
        "from ansible_collections.ddtree.fleet.tests.unit import sglang_environments as t\n"
        f"t.gate(pathlib.Path({str(releases / 'dest')!r}), **{options!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program])
    deadline = time.monotonic() + 10
    while not (releases / "dest").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (releases / "dest").exists()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 128 + signal.SIGTERM
    assert not (releases / "dest").exists()


@needs_mount
def test_places_that_cannot_be_a_mount_point(releases: Path, tmp_path: Path) -> None:
    release = str(releases / "new")
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(GateError, match="exists and is no directory"):
        gate(tmp_path / "file", release=release)
    with pytest.raises(GateError, match="is a symlink to .*/nowhere, which is no directory"):
        gate(tmp_path / "dangling", release=release)
    with pytest.raises(GateError, match="cannot be made as a mount point for the gate: No such file or directory"):
        gate(tmp_path / "nowhere" / "dest", release=release)
    with pytest.raises(GateError, match="is no directory: there is no environment"):
        gate(tmp_path / "dest", release=str(tmp_path / "nowhere"))


def test_a_mount_that_is_refused_is_one_clear_error(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "bin" / "unshare", "#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n"
    )
    (tmp_path / "bin" / "unshare").chmod(0o755)
    monkeypatch.setattr(environment, "_BASE_ENVIRONMENT", {"PATH": f"{tmp_path}/bin"})
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(GateError, match="cannot be mounted over .*Operation not permitted; this needs root"):
        gate(tmp_path / "dest", release=str(built))
    assert not (tmp_path / "dest").exists()
