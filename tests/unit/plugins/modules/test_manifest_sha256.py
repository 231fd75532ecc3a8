# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._index import HashIndex, index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import FILE, hash_file, scan

RunModule = Callable[..., Dict[str, Any]]
META = Path(__file__).resolve().parents[4] / "meta"  # files that nobody has just written
LATER = 10_000_000_000


@pytest.fixture(name="tree")
def tree_fixture(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "tree"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "run").write_text("x")
    (root / "link").symlink_to("bin")
    yield root
    index_of(root).unlink(missing_ok=True)


def index_of(root: Path) -> Path:
    return Path(os.fsdecode(index_path(os.fsencode(root))))


def present(tree: Path, **more: Any) -> Dict[str, Any]:
    return {"path": str(tree), "manifest": str(tree.parent / "m"), "state": "present", **more}


def verified(tree: Path, **more: Any) -> Dict[str, Any]:
    return {"path": str(tree), "manifest": str(tree.parent / "m"), **more}


def remember(tree: Path) -> None:
    """Make the index that a run would leave once the files had been quiet for long enough."""
    index = HashIndex(os.fsencode(index_of(tree)))
    for entry in scan(os.fsencode(tree)):
        if entry.kind == FILE:
            index.add(entry, hash_file(os.fsencode(tree), entry), time.time_ns() + LATER)
    index.save()


def test_writing_is_idempotent_and_true_in_check_mode(run_module: RunModule, tree: Path) -> None:
    manifest = tree.parent / "m"
    would = run_module("manifest_sha256", present(tree, label="tp8"), check=True, diff=True)
    assert (would["changed"], manifest.exists()) == (True, False)
    first = run_module("manifest_sha256", present(tree, label="tp8"), diff=True)
    assert (first["changed"], first["digest"]) == (True, would["digest"])
    assert (first["files"], first["bytes"], first["label"]) == (1, 1, "tp8")
    assert "+#: l ./link\tbin\n" in first["diff"]["prepared"]
    long_ago = "2026-01-31T12:00:00Z"
    manifest.write_text(manifest.read_text().replace(first["provenance"]["time"], long_ago))
    before = manifest.stat()
    second = run_module("manifest_sha256", present(tree, label="tp8"), diff=True)
    assert (second["changed"], "diff" in second) == (False, False)
    assert second["digest"] == first["digest"]
    assert second["provenance"] == {"label": "tp8", "time": long_ago}
    after = manifest.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    subprocess.run(["sha256sum", "-c", "--strict", manifest], cwd=tree, check=True, capture_output=True)


def test_a_changed_tree_is_written_down_again_and_the_mode_kept(run_module: RunModule, tree: Path) -> None:
    manifest = tree.parent / "m"
    run_module("manifest_sha256", present(tree))
    manifest.chmod(0o600)
    (tree / "bin" / "run").write_text("y")
    assert run_module("manifest_sha256", present(tree))["changed"] is True
    assert manifest.stat().st_mode & 0o777 == 0o600
    assert run_module("manifest_sha256", verified(tree))["rc"] == 0
    assert sorted(os.listdir(tree.parent)) == ["m", "tree"]


def test_a_damaged_manifest_is_written_anew(run_module: RunModule, tree: Path) -> None:
    run_module("manifest_sha256", present(tree))
    manifest = tree.parent / "m"
    manifest.write_bytes(manifest.read_bytes()[:-9])
    assert "line 7 " in run_module("manifest_sha256", verified(tree))["msg"]
    assert run_module("manifest_sha256", present(tree))["changed"] is True
    assert run_module("manifest_sha256", verified(tree))["rc"] == 0


def test_a_manifest_inside_the_tree_does_not_count(run_module: RunModule, tree: Path) -> None:
    outside = run_module("manifest_sha256", present(tree))
    inside = run_module("manifest_sha256", present(tree, manifest=str(tree / "MANIFEST.sha256")))
    again = run_module("manifest_sha256", present(tree, manifest=str(tree / "MANIFEST.sha256")))
    assert (inside["digest"], inside["changed"], again["changed"]) == (outside["digest"], True, False)
    assert run_module("manifest_sha256", {"path": str(tree), "manifest": str(tree / "MANIFEST.sha256")})["rc"] == 0


def test_verification_names_what_differs_also_in_check_mode(run_module: RunModule, tree: Path) -> None:
    run_module("manifest_sha256", present(tree))
    good = run_module("manifest_sha256", verified(tree))
    assert (good["rc"], good["changed"], good["differences"]["counts"]["extra"]) == (0, False, 0)
    (tree / "new").write_text("")
    for check in (False, True):
        bad = run_module("manifest_sha256", verified(tree), check=check)
        assert bad["msg"] == (
            f"manifest gate failed for {tree}: 1 differences from {tree.parent}/m (1 extra)\n"
            "- extra: new: expected nothing, found a file"
        )
        assert bad["differences"]["extra"] == [{"path": "new", "expected": "nothing", "found": "a file"}]
        assert bad["digest"] != good["digest"]


def test_what_was_moved_is_told_once(run_module: RunModule, tree: Path) -> None:
    run_module("manifest_sha256", present(tree))
    (tree / "bin" / "run").rename(tree / "ran")
    bad = run_module("manifest_sha256", verified(tree))
    assert bad["msg"].splitlines()[1:] == ["- moved: bin/run -> ran"]
    assert bad["differences"]["moved"] == [{"path": "bin/run", "expected": "a file", "found": "ran"}]
    assert bad["differences"]["counts"] == {"missing": 0, "moved": 1, "changed": 0, "extra": 0, "mode": 0, "link": 0}


def test_exclude_is_remembered_by_the_manifest(run_module: RunModule, tree: Path) -> None:
    (tree / "a.log").write_text("")
    run_module("manifest_sha256", present(tree, exclude=["*.log"]))
    (tree / "b.log").write_text("")
    (tree / "c.tmp").write_text("")
    assert "- extra: c.tmp:" in run_module("manifest_sha256", verified(tree))["msg"]
    assert run_module("manifest_sha256", verified(tree, exclude=["*.tmp"]))["rc"] == 0


def test_a_tree_is_verified_by_its_digest_alone(run_module: RunModule, tree: Path) -> None:
    digest = run_module("manifest_sha256", present(tree))["digest"]
    good = run_module("manifest_sha256", {"path": str(tree), "digest": digest.upper()})
    assert (good["rc"], "differences" in good) == (0, False)
    other = "0" * 64
    bad = run_module("manifest_sha256", verified(tree, digest=other))
    assert bad["msg"] == f"manifest gate failed for {tree}: expected the tree digest {other}, found {digest}"


def test_a_tree_is_verified_with_text_from_the_control_node(run_module: RunModule, tree: Path) -> None:
    made = subprocess.run(
        "echo '# Reproduction package'; echo '# 2026-01-31'; find -type f -exec sha256sum {} \\; | sort -k2",
        shell=True,
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert run_module("manifest_sha256", {"path": str(tree), "content": made.rstrip()})["rc"] == 0
    (tree / "bin" / "run").write_text("y")
    bad = run_module("manifest_sha256", {"path": str(tree), "content": made})
    assert bad["msg"].startswith(f"manifest gate failed for {tree}: 1 differences from the content given (1 changed)")
    bad = run_module("manifest_sha256", {"path": str(tree), "content": made.replace("\n", "\r\n")})
    assert bad["msg"] == (
        "manifest in content has 3 malformed lines\n"
        "- line 1 ends with CR LF; convert the file to LF line ends (also line 2, 3)"
    )


def test_a_manifest_of_another_configuration_fails(run_module: RunModule, tree: Path) -> None:
    run_module("manifest_sha256", present(tree, label="tp8"))
    good = run_module("manifest_sha256", verified(tree, label="tp8"))
    assert (good["rc"], good["label"]) == (0, "tp8")
    m = tree.parent / "m"
    assert run_module("manifest_sha256", verified(tree, label="ep8"))["msg"] == (
        f"manifest gate failed for {tree}: {m} has the label tp8, not ep8; name the manifest of this configuration"
    )
    run_module("manifest_sha256", present(tree))
    assert f"{m} has no label, not ep8" in run_module("manifest_sha256", verified(tree, label="ep8"))["msg"]


@pytest.fixture(name="environment")
def environment_fixture(tmp_path: Path) -> Path:
    site = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    for name, version in (
        ("Sgl_Kernel-0.4.2", "0.4.2"),
        ("torch-2.9.1+cu130", "2.9.1+cu130"),
        ("sglang-0.5.9", "0.5.9"),
    ):
        (site / f"{name}.dist-info").mkdir(parents=True)
        (site / f"{name}.dist-info" / "METADATA").write_text(f"Name: x\nVersion: {version}\n\nVersion: 9\n")
    (site / "sglang-0.5.11.dist-info").mkdir()
    return tmp_path / "venv"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["serve", "--api-key=one 'two' three", "-v"], "serve --api-key=REDACTED -v"),
        (["serve", "--api-key", "one 'two' three", "-v"], "serve --api-key REDACTED -v"),
        (["serve", "--max-new-tokens", "8", "--name=a b"], "serve --max-new-tokens 8 '--name=a b'"),
    ],
)
def test_a_command_line_shows_no_secret_whatever_it_is_quoted_like(
    run_module: RunModule, tree: Path, words: List[str], shown: str
) -> None:
    assert run_module("manifest_sha256", present(tree, command_line=words))["provenance"]["command_line"] == shown


def test_provenance_is_written_down_and_reported(
    run_module: RunModule, tree: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    monkeypatch.delenv("DDTREE_UNSET", raising=False)
    given = present(
        tree,
        label="tp8",
        provenance={"accept_length": 3.9, "model": "Kimi K2.6\nof two lines"},
        packages=["sgl-kernel", "torch", "sglang"],
        packages_root=str(environment),
        commit="91a3f1c",
        command_line=["python", "-m", "sglang.launch_server", "--api-key", "hunter2", "--host", "a b"],
        environment=["NCCL_NVLS_ENABLE", "DDTREE_UNSET"],
    )
    first = run_module("manifest_sha256", given, diff=True)
    said = dict(first["provenance"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", said.pop("time"))
    assert said == {
        "label": "tp8",
        "commit": "91a3f1c",
        "command_line": "python -m sglang.launch_server --api-key REDACTED --host 'a b'",
        "package": {"sgl-kernel": "0.4.2", "torch": "2.9.1+cu130", "sglang": "0.5.11, 0.5.9"},
        "environment": {"NCCL_NVLS_ENABLE": "1"},
        "note": {"accept_length": "3.9", "model": "Kimi K2.6\nof two lines"},
    }
    assert "hunter2" not in (tree.parent / "m").read_text() + first["diff"]["prepared"]
    assert run_module("manifest_sha256", verified(tree))["provenance"] == first["provenance"]
    subprocess.run(["sha256sum", "-c", "--strict", tree.parent / "m"], cwd=tree, check=True, capture_output=True)
    assert run_module("manifest_sha256", given)["changed"] is False
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    again = run_module("manifest_sha256", given)
    assert (again["changed"], again["provenance"]["environment"]) == (True, {"NCCL_NVLS_ENABLE": "0"})
    assert again["provenance"]["time"] == first["provenance"]["time"]


def git(tree: Path, *arguments: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", tree, *who, *arguments], check=True, capture_output=True, text=True).stdout


def test_the_commit_of_a_work_tree(run_module: RunModule, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tree, "init", "-q")
    (tree / "M").write_text("")
    git(tree, "add", ".")
    given = present(tree, manifest=str(tree / "M"), work_tree=str(tree / "bin"), exclude=[".git"])
    assert "M^{commit}" not in run_module("manifest_sha256", given)["msg"]
    git(tree, "commit", "-qm", "x")
    head = git(tree, "rev-parse", "HEAD").strip()
    (tree / "untracked").write_text("")
    first = run_module("manifest_sha256", given)
    assert (first["changed"], first["provenance"]["commit"]) == (True, head)
    assert run_module("manifest_sha256", given)["changed"] is False
    (tree / "bin" / "run").write_text("y")
    assert run_module("manifest_sha256", given)["provenance"]["commit"] == f"{head}-dirty"
    bad = run_module("manifest_sha256", {**given, "work_tree": str(tree.parent)})
    assert bad["msg"].startswith(f"work_tree {tree.parent}: fatal: not a git repository")
    monkeypatch.setenv("PATH", str(tree))
    assert run_module("manifest_sha256", given)["msg"] == (
        "work_tree needs git on this host; install it, or give the commit as a text"
    )


@pytest.mark.parametrize("name", ["HF_TOKEN", "sglangApiKey", "DB_PASSWORD2", "AWS_SECRET_ACCESS", "Authorization"])
def test_names_of_secrets_are_refused(run_module: RunModule, tree: Path, name: str) -> None:
    for option, given in (("environment", [name]), ("provenance", {name: "hunter2"})):
        bad = run_module("manifest_sha256", present(tree, **{option: given}))
        assert bad["msg"] == (
            f"{option} {name} looks like the name of a secret, which a manifest would show; leave it out"
        )
    assert not (tree.parent / "m").exists()


def test_names_that_only_sound_like_secrets_are_written_down(run_module: RunModule, tree: Path) -> None:
    given = {"max_new_tokens": "64", "tokens_per_second": "160", "author": "x", "keyboard": "y", "passed": "3"}
    assert run_module("manifest_sha256", present(tree, provenance=given))["provenance"]["note"] == given


def test_an_edit_that_keeps_size_and_mtime_is_caught_by_its_ctime(run_module: RunModule, tree: Path) -> None:
    file = tree / "bin" / "run"
    run_module("manifest_sha256", present(tree))
    remember(tree)
    st = file.stat()
    file.write_text("y")
    os.utime(file, ns=(st.st_atime_ns, st.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (st.st_size, st.st_mtime_ns)
    assert "- changed: bin/run:" in run_module("manifest_sha256", verified(tree))["msg"]
    assert run_module("manifest_sha256", present(tree))["changed"] is True


def test_a_wrong_index_is_only_trusted_by_index(run_module: RunModule, tree: Path) -> None:
    """As if the disk had lost a byte: no time tells, but reading does; so does the index of another tree, which is not used."""
    run_module("manifest_sha256", present(tree))
    remember(tree)
    index = index_of(tree)
    right = index.read_bytes()
    wrong = right[:-1] + bytes([right[-1] ^ 1])
    index.write_bytes(wrong)
    assert "- changed: bin/run:" in run_module("manifest_sha256", verified(tree))["msg"]  # so the index was used
    assert run_module("manifest_sha256", verified(tree, verify="full"))["rc"] == 0
    for mode, data in ((0o666, wrong), (0o600, wrong[:-1]), (0o600, b"\0" * 1000)):
        index.write_bytes(data)
        index.chmod(mode)
        assert run_module("manifest_sha256", verified(tree))["rc"] == 0
    other = tree.parent / "other"
    shutil.copytree(tree, other, symlinks=True)
    try:
        index_of(other).write_bytes(wrong)
        assert run_module("manifest_sha256", {**verified(tree), "path": str(other)})["rc"] == 0
    finally:
        index_of(other).unlink(missing_ok=True)


def test_hashes_are_remembered_but_not_in_check_mode_nor_inside_the_tree(run_module: RunModule, tmp_path: Path) -> None:
    given = {**present(META), "manifest": str(tmp_path / "m")}
    index = index_of(META)
    index.unlink(missing_ok=True)
    try:
        run_module("manifest_sha256", given, check=True)
        assert not index.exists()
        run_module("manifest_sha256", given)
        assert index.stat().st_mode & 0o777 == 0o600
        caches = index.parent
        run_module("manifest_sha256", {**given, "path": str(caches)})
        assert not index_of(caches).exists()
    finally:
        index.unlink(missing_ok=True)


def test_what_cannot_be_done_is_one_message(run_module: RunModule, tree: Path) -> None:
    def said(**args: Any) -> str:
        result = run_module("manifest_sha256", {"path": str(tree), **args})
        assert result["rc"] == 1
        return str(result["msg"])

    gone, m = str(tree.parent / "gone"), str(tree.parent / "m")
    assert said() == "state is verified but any of the following are missing: manifest, content, digest"
    assert said(state="present") == "state is present but all of the following are missing: manifest"
    assert said(manifest=m, state="present", digest="0" * 64) == (
        "digest is for state=verified; state=present writes down the tree as it stands"
    )
    assert said(manifest=m, content=f"{'0' * 64}  a") == "parameters are mutually exclusive: manifest|content"
    assert said(digest="0" * 64, label="x") == "label is that of a manifest, so it needs manifest or content"
    assert said(manifest=m, commit="x") == (
        "commit is for state=present; state=verified reports what the manifest says"
    )
    assert said(manifest=m, state="present", packages_root="/") == "packages_root is of use only with packages"
    assert said(manifest=m, state="present", packages=["x"]) == (
        f"packages_root {tree} is neither an environment nor a directory with dist-info directories"
    )
    (tree / "a-1.dist-info").mkdir()
    assert said(manifest=m, state="present", packages=["x"]) == f"packages: x is not installed in {tree}"
    assert said(manifest=m, state="present", provenance={"a": [1]}) == (
        "provenance a is not a text or a number; give each value a name of its own"
    )
    assert said(manifest=m, state="present", label="x" * 70000) == (
        "label is longer than 64 KiB; a manifest takes a short text"
    )
    assert said(digest="abc") == "digest 'abc' is not a SHA-256 of 64 hex digits"
    assert said(manifest=gone) == f"manifest {gone} cannot be read: No such file or directory"
    assert said(manifest=str(tree), state="present") == f"manifest {tree} cannot be read: Is a directory"
    assert (
        said(manifest=gone + "/m", state="present")
        == f"manifest {gone}/m cannot be written: its directory is not there"
    )
    assert said(manifest="/proc/m", state="present").startswith("manifest /proc/m cannot be written: ")
    for path in (gone, str(tree / "bin/run")):
        assert said(path=path, digest="0" * 64) == f"path {path} is no directory on this host; name the top of the tree"
    assert said(manifest=m, state="present", provenance={"a": None}).startswith(
        "provenance a is not a text or a number"
    )
    assert said(manifest=m, state="present", environment=["A=1"]) == (
        "environment 'A=1' is no name of a variable; its value is read on the host"
    )
    os.mkfifo(m)
    for state in ("present", "verified"):
        assert said(manifest=m, state=state) == f"manifest {m} cannot be read: no regular file"
    os.unlink(m)
    Path(m).write_text("hello\n")
    assert said(manifest=m) == f"manifest {m} line 1 is not '<64 hex digits>  <path>'"
    os.mkfifo(tree / "pipe")
    assert said(digest="0" * 64) == f"{tree}/pipe is a FIFO, which no environment needs; remove it or exclude it"
