# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
import os
import random
import subprocess
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils import _manifest
from ansible_collections.ddtree.fleet.plugins.module_utils._manifest import (
    Differences,
    ManifestError,
    Provenance,
    compare,
    differing_lines,
    parse,
    place_in_tree,
    read_tree,
    render,
    wrong_digest,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import tree_digest

ODD_NAMES = [
    b"plain",
    b"two  blanks ",
    b"new\nline",
    b"back\\slash",
    b"\\n",
    b"carriage\rreturn\r",
    b"quote\"'",
    b"-c",
    b"#: tree",
    b"tab\there",
    b"\xff not utf-8 \x80",
    "grüße 木".encode(),
    b"\x1b[31m\x7f",
    b"\xed\xa0\x80",
    b" *star",
    b"\\x41",
]
HASH = "0" * 64


@pytest.fixture(name="tree")
def tree_fixture(tmp_path: Path) -> bytes:
    """A tree with files, empty and full directories and links, each under every odd name."""
    root = os.fsencode(tmp_path / "tree")
    os.mkdir(root)
    for name in ODD_NAMES:
        os.makedirs(os.path.join(root, b"d " + name, b"empty " + name))
        with open(os.path.join(root, b"d " + name, name), "wb") as file:
            file.write(name)
        with open(os.path.join(root, name), "wb") as file:
            file.write(b"top " + name)
        os.symlink(name, os.path.join(root, b"l " + name))
    os.chmod(os.path.join(root, b"plain"), 0o755)
    os.chmod(os.path.join(root, b"d plain"), 0o700)
    return root


def sha256sum(root: bytes, data: bytes) -> Tuple[int, str]:
    path = os.path.join(os.path.dirname(root), b"manifest")
    with open(path, "wb") as file:
        file.write(data)
    done = subprocess.run(["sha256sum", "-c", "--strict", path], cwd=root, capture_output=True, check=False)
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "backslashreplace")


def held(root: bytes, data: bytes, exclude: Sequence[str] = ()) -> Differences:
    return compare(parse(data), *read_tree(root, exclude), exclude)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def shown(differences: Differences) -> Dict[str, List[str]]:
    return {kind: [one.sentence() for one in found] for kind, found in differences.lists().items() if found}


def test_odd_names_are_read_back_exactly_and_sha256sum_accepts_them(tree: bytes) -> None:
    entries, hashes = read_tree(tree)
    data = render(entries, hashes, Provenance("a label\nof two \\ lines"), ["*.log", "a\\b"])
    manifest = parse(data)
    assert [(one.path, one.kind, one.mode, one.target) for one in manifest.entries] == [
        (one.path, one.kind, one.mode, one.target) for one in entries
    ]
    assert manifest.hashes == hashes
    assert manifest.digest == tree_digest(entries, hashes)
    assert (manifest.provenance.label, manifest.exclude) == ("a label\nof two \\ lines", ["*.log", "a\\b"])
    assert not held(tree, data).count()
    code, said = sha256sum(tree, data)
    assert code == 0, said
    assert said.count(": OK") == 2 * len(ODD_NAMES)
    assert "WARNING" not in said


def test_the_same_tree_gives_the_same_bytes_in_any_order(tree: bytes) -> None:
    entries, hashes = read_tree(tree)
    os.utime(os.path.join(tree, b"plain"), (1, 1))
    assert render(entries, hashes) == render(list(reversed(entries)), hashes) == render(*read_tree(tree))


def test_the_layout_of_a_manifest(tmp_path: Path) -> None:
    root = tmp_path / "t"
    (root / "bin").mkdir(parents=True)
    (root / "bin").chmod(0o755)
    (root / "bin/run").write_text("x")
    (root / "bin/run").chmod(0o755)
    (root / "a").write_text("")
    (root / "a").chmod(0o644)
    (root / "lib\\64").symlink_to("li b")
    entries, hashes = read_tree(os.fsencode(root))
    assert render(entries, hashes, Provenance("tp8")).decode() == (
        "# A ddtree.fleet manifest. Its files are checked with: sha256sum -c --strict\n"
        "#: format 1\n"
        "#: label tp8\n"
        f"#: tree {tree_digest(entries, hashes)}\n"
        "#: d 0755 ./bin\n"
        "#: f 0755 ./bin/run\n"
        "#: l ./lib\\x5c64\tli b\n"
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  ./a\n"
        "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881  ./bin/run\n"
    )


def test_manifests_of_sha256sum_are_read(tree: bytes) -> None:
    for flag in ("--text", "--binary"):
        made = subprocess.run(
            f"find . -type f -exec sha256sum {flag} {{}} \\; | LC_ALL=C sort -k2",
            shell=True,
            cwd=tree,
            capture_output=True,
            check=True,
        ).stdout
        data = b"# Reproduction package\n# 2026-01-01\n\n" + made
        assert not held(tree, data).count()
        assert not parse(data).digest
    with open(os.path.join(tree, b"plain"), "wb") as file:
        file.write(b"x")
    os.unlink(os.path.join(tree, b"-c"))
    os.mkdir(os.path.join(tree, b"extra directories are not told by it"))
    with open(os.path.join(tree, b"extra"), "wb"):
        pass
    found = held(tree, data)
    assert [len(one) for one in found.lists().values()] == [1, 0, 1, 1, 0, 0]


def test_every_kind_of_difference_is_told(tmp_path: Path) -> None:
    root = tmp_path / "t"
    root.mkdir()
    for name in ("changed", "gone", "mode", "becomes_link", "becomes_directory"):
        (root / name).write_text(name)
        (root / name).chmod(0o644)
    for name in ("kept", "gone_directory", "mode_directory"):
        (root / name).mkdir()
        (root / name).chmod(0o755)
    (root / "link").symlink_to("kept")
    data = render(*read_tree(os.fsencode(root)))
    (root / "changed").write_text("other")
    (root / "gone").unlink()
    (root / "mode").chmod(0o600)
    (root / "becomes_link").unlink()
    (root / "becomes_link").symlink_to("kept")
    (root / "becomes_directory").unlink()
    (root / "becomes_directory").mkdir()
    (root / "gone_directory").rmdir()
    (root / "mode_directory").chmod(0o700)
    (root / "link").unlink()
    (root / "link").symlink_to("mode")
    (root / "extra").write_text("")
    (root / "extra_directory").mkdir()
    found = held(os.fsencode(root), data)
    assert shown(found) == {
        "missing": ["gone: expected a file, found nothing", "gone_directory: expected a directory, found nothing"],
        "changed": [
            "becomes_directory: expected a file, found a directory",
            "becomes_link: expected a file, found a link",
            f"changed: expected {sha256('changed')}, found {sha256('other')}",
        ],
        "extra": ["extra: expected nothing, found a file", "extra_directory: expected nothing, found a directory"],
        "mode": ["mode: expected 0644, found 0600", "mode_directory: expected 0755, found 0700"],
        "link": ["link: expected kept, found mode"],
    }
    assert found.message("/t", "/m").splitlines()[:3] == [
        "manifest gate failed for /t: 10 differences from /m (2 missing, 3 changed, 2 extra, 2 mode, 1 link)",
        "- missing: gone: expected a file, found nothing",
        "- missing: gone_directory: expected a directory, found nothing",
    ]


def test_messages_and_results_are_bounded(tmp_path: Path) -> None:
    root = tmp_path / "t"
    root.mkdir()
    data = render(*read_tree(os.fsencode(root)))
    for number in range(250):
        (root / f"{number:03}").write_text("")
    found = held(os.fsencode(root), data)
    lines = found.message("/t", "/m").splitlines()
    assert len(lines) == 22
    assert lines[-2:] == ["- extra: 019: expected nothing, found a file", "- and 230 more"]
    assert len(found.result()["extra"]) == 200
    assert found.result()["extra"][0] == {"path": "000", "expected": "nothing", "found": "a file"}
    assert found.result()["counts"] == {"missing": 0, "moved": 0, "changed": 0, "extra": 250, "mode": 0, "link": 0}


def test_no_differences_give_no_message() -> None:
    assert not Differences().message("/t", "/m")


def test_excluded_things_and_compiled_files_do_not_count(tmp_path: Path) -> None:
    root = tmp_path / "t"
    for name in ("logs/deep/a", "b.log", "c", "__pycache__/c.pyc"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    made = subprocess.run("find . -type f -exec sha256sum {} +", shell=True, cwd=root, capture_output=True, check=True)
    (root / "b.log").write_text("other")
    (root / "logs/deep/a").unlink()
    (root / "__pycache__/c.pyc").unlink()
    assert not held(os.fsencode(root), made.stdout, ["*.log", "logs"]).count()
    assert held(os.fsencode(root), made.stdout, ["logs/d*"]).count() == 1


def test_the_manifests_own_file_never_counts(tmp_path: Path) -> None:
    root = tmp_path / "t"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "alias").symlink_to(root)
    (tmp_path / "t2").mkdir()

    def place(top: str, manifest: str) -> object:
        return place_in_tree(os.fsencode(tmp_path / top), os.fsencode(tmp_path / manifest))

    assert place("t", "t/sub/M") == b"sub/M"
    assert place("alias", "t/M") == place("t", "alias/M") == b"M"
    assert place("t", "M") is place("t", "t2/M") is None
    (root / "M").write_text("")
    entries, hashes = read_tree(os.fsencode(root), (), b"M")
    assert [entry.path for entry in entries] == [b"sub"]
    listed = parse(f"{HASH}  ./M\n".encode())
    assert not compare(listed, entries, hashes, (), b"M").count()


FULL = "#: format 1\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("", "lists nothing"),
        ("# a comment\n\n", "lists nothing"),
        (f"\ufeff{HASH}  a\n", "line 1 begins with a byte order mark; save it as UTF-8 without one"),
        (
            f"# x\r\n{HASH}  a\r\n",
            "has 2 malformed lines\n- line 1 ends with CR LF; convert the file to LF line ends (also line 2)",
        ),
        (f"{HASH}  a\nhello\n", "line 2 is not '<64 hex digits>  <path>'"),
        (f"{HASH} a\n", "line 1 is not '<64 hex digits>  <path>'"),
        (f"{HASH}  \n", "line 1 is not '<64 hex digits>  <path>'"),
        (
            f"{HASH[1:]}  a\n",
            "line 1 has a digest of 63 hex digits; a SHA-256 has 64, so write it with sha256sum",
        ),
        (
            f"{HASH * 2}  a\n",
            "line 1 has an SHA-512 digest of 128 hex digits; a SHA-256 has 64, so write it with sha256sum",
        ),
        (
            f"SHA256 (a) = {HASH}\n",
            "line 1 is the BSD form, 'SHA256 (<path>) = <digest>'; write it with 'sha256sum' without --tag",
        ),
        (f"\\{HASH}  a\\tb\n", "line 1 holds the unknown escape \\t"),
        (f"\\{HASH}  a\\\n", "line 1 holds the unknown escape \\"),
        (f"{HASH}  a\0\n", "line 1 holds a NUL character"),
        (f"{HASH}  /etc/passwd\n", "line 1 lists the absolute path /etc/passwd; paths must be relative to the tree"),
        (f"{HASH}  .//etc\n", "line 1 lists the absolute path /etc; paths must be relative to the tree"),
        (f"{HASH}  a/../../b\n", "line 1 lists a/../../b, which climbs out of the tree"),
        (f"{HASH}  ./a//b\n", "line 1 lists ./a//b, which is not the plain path of something in the tree"),
        (f"{HASH}  ./a/./b\n", "line 1 lists ./a/./b, which is not the plain path of something in the tree"),
        (f"{HASH}  a/\n", "line 1 lists a/, which is not the plain path of something in the tree"),
        (f"{HASH}  ./\n", "line 1 lists ./, which is not the plain path of something in the tree"),
        (f"{HASH}  a\n# x\n{HASH}  ./a\n", "line 3 lists a again, after line 1"),
        ("#: d 0755 ./a\n", "line 1 is a record, but no '#: format 1' stands before it"),
        ("#: format 2\n", "line 1 says format 2; only format 1 is known"),
        (FULL + "#: owner root\n", "line 2 is an unknown record, owner"),
        (FULL + "#: d 755 ./a\n", "line 2 is not '<mode> ./<path>' with a mode such as 0755"),
        (FULL + "#: d 0999 ./a\n", "line 2 is not '<mode> ./<path>' with a mode such as 0755"),
        (FULL + "#: d 0755 ./a\\q\n", "line 2 holds a backslash that is not part of \\xNN"),
        (FULL + "#: d 0755 ../a\n", "line 2 lists ../a, which climbs out of the tree"),
        (FULL + "#: d 0755 ./a\n#: l ./a\tb\n", "line 3 lists a again, after line 2"),
        (FULL + "#: l ./a\n", "line 2 is a link without a target"),
        (FULL + "#: l ./a\t\n", "line 2 is a link without a target"),
        (FULL + "#: f 0755 ./a\n#: f 0755 ./a\n", "line 3 gives a second mode for a, after line 2"),
        (FULL + "#: f 0755 ./a\n", "line 2 gives a mode for a, which no line lists as a file"),
    ],
)
def test_malformed_manifests_are_refused_by_line(data: str, said: str) -> None:
    with pytest.raises(ManifestError) as raised:
        parse(data.encode())
    assert str(raised.value) == said


def test_a_cut_or_edited_manifest_is_refused(tree: bytes) -> None:
    data = render(*read_tree(tree))
    edited = b"it was cut off or edited, so write it again from a good tree"
    lines = data.splitlines(keepends=True)
    for damaged in (b"".join(lines[:-1]), data.replace(b"#: f 0755 ./plain", b"#: f 0700 ./plain")):
        with pytest.raises(ManifestError, match=edited.decode()):
            parse(damaged)
    with pytest.raises(ManifestError, match="^has the tree digest of no tree, but its lines make "):
        parse(b"".join(line for line in lines if not line.startswith(b"#: tree")))


def test_an_empty_tree_has_a_manifest(tmp_path: Path) -> None:
    data = render(*read_tree(os.fsencode(tmp_path)))
    assert not held(os.fsencode(tmp_path), data).count()


def test_differing_lines_are_bounded_and_readable() -> None:
    assert differing_lines(b"a\nb\n", b"a\nc\xff\n") == "-b\n+c\\xff\n"
    assert not differing_lines(b"a\n", b"a\n")
    lines = differing_lines(b"", b"".join(b"%d\n" % number for number in range(500))).splitlines()
    assert len(lines) == 200
    assert lines[-1] == "and 301 lines more"


def test_wrong_digests() -> None:
    assert wrong_digest("a" * 64) is wrong_digest("A" * 64) is None
    assert wrong_digest("abc") == "digest 'abc' is not a SHA-256 of 64 hex digits"


NASTY = [
    b"\n",
    b"\r",
    b"\\",
    b" ",
    b"*",
    b"#",
    b"\t",
    b"\xff",
    b"\x80",
    b"\xc3\xa4",
    b"\xed\xa0\x80",
    b"\x1b",
    b"'",
    b":",
    b"n",
    b"r",
    b"x41",
    b".",
]


def odd_name(chosen: random.Random) -> bytes:
    return b"".join(chosen.choices(NASTY, k=chosen.randint(1, 12)))


@pytest.mark.parametrize("seed", range(3))
def test_any_name_goes_to_sha256sum_and_comes_back_from_it(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    root = os.fsencode(tmp_path / "tree")
    os.mkdir(root)
    names = {odd_name(chosen) for _number in range(300)} - {b".", b"..", b"__pycache__"}
    for name in names:
        kind = chosen.random()
        path = os.path.join(root, name)
        if kind < 0.1:
            os.mkdir(path)
        elif kind < 0.2:
            os.symlink(odd_name(chosen), path)
        else:
            with open(path, "wb") as file:
                file.write(name)
            os.chmod(path, chosen.choice([0o644, 0o755, 0o600]))
    entries, hashes = read_tree(root)
    data = render(entries, hashes)
    code, said = sha256sum(root, data)
    assert (code, said.count(": OK"), "WARNING" in said) == (0, len(hashes), False), said
    found = parse(data)
    assert [one[:5] for one in found.entries] == [one[:3] + (0,) + one[4:5] for one in entries]
    assert found.hashes == hashes
    made = subprocess.run("find . -type f -exec sha256sum {} + | sort -k2", shell=True, cwd=root, capture_output=True)
    assert parse(made.stdout).hashes == hashes


@pytest.mark.parametrize("seed", range(200))
def test_a_damaged_manifest_is_refused_in_bounded_words_or_says_what_it_says(tree: bytes, seed: int) -> None:
    chosen = random.Random(seed)
    whole = render(*read_tree(tree), Provenance("tp8", note={"a": "b"}))
    data = bytearray(whole)
    for _damage in range(chosen.randint(1, 5)):
        at = chosen.randrange(len(data))
        data[at : at + chosen.choice([0, 1, 70])] = chosen.choice(
            [b"", b"\n", b"\\", b"\0", b"\r", b"#: ", b"\xff", whole[at : at + 99]]
        )
    try:
        manifest = parse(bytes(data))
    except ManifestError as error:
        assert 0 < len(str(error)) < 10_000
    else:
        assert manifest.digest == parse(whole).digest


def test_every_malformed_line_is_named_in_a_bounded_message() -> None:
    lines = [f"{HASH}  ./good", "hello", f"{HASH}  ../{'a' * 100_000}", *["hello"] * 100_000]
    lines += [f"{HASH}  /{number}" for number in range(100)]
    with pytest.raises(ManifestError) as raised:
        parse("\n".join(lines).encode())
    said = str(raised.value).splitlines()
    assert said[:2] == [
        "has 100102 malformed lines",
        "- line 2 is not '<64 hex digits>  <path>' (also line 4, 5, 6, 7 and 99996 more)",
    ]
    assert said[2].startswith("- line 3 lists ../aaaa")
    assert said[3] == "- line 100004 lists the absolute path /0; paths must be relative to the tree"
    assert (len(said), said[-1]) == (22, "- and 82 more")
    assert max(map(len, said)) < 500


def test_a_byte_order_mark_and_crlf_are_both_named() -> None:
    with pytest.raises(ManifestError) as raised:
        parse(f"\ufeff{HASH}  a\r\n{HASH}  b\r\n".encode())
    assert str(raised.value).splitlines() == [
        "has 3 malformed lines",
        "- line 1 begins with a byte order mark; save it as UTF-8 without one",
        "- line 1 ends with CR LF; convert the file to LF line ends (also line 2)",
    ]


def test_what_is_larger_than_any_manifest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_manifest, "MAX_BYTES", 1 << 20)
    with pytest.raises(ManifestError, match="^is larger than 1 MiB, so it is no manifest of an environment$"):
        parse(b"#" * ((1 << 20) + 1))


def test_more_excludes_than_anybody_writes_are_refused() -> None:
    whole = render([], {}, exclude=["x"] * 1000)
    assert len(parse(whole).exclude) == 1000
    more = whole.replace(b"#: tree", b"#: exclude y\n#: tree")
    with pytest.raises(ManifestError, match="^line 1003 is one more than the 1000 excludes that a manifest may have$"):
        parse(more)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ("#: label a\n#: label b\n", "line 3 is a second label"),
        ("#: package torch\n", "line 2 is not 'package <name><TAB><value>'"),
        ("#: note a\tb\n#: note a\tc\n", "line 3 is a second note a"),
    ],
)
def test_malformed_provenance_is_refused(records: str, said: str) -> None:
    with pytest.raises(ManifestError) as raised:
        parse((FULL + records).encode())
    assert str(raised.value) == said


def test_provenance_is_read_back_and_sha256sum_passes_over_it(tree: bytes) -> None:
    odd = "a\tb\nc\\ \udcff"
    provenance = Provenance("l", "2026-01-31T12:00:00Z", odd, odd, {odd: "1"}, {"A": ""}, {"k": odd, "l": "2"})
    data = render(*read_tree(tree), provenance)
    assert parse(data).provenance == provenance
    assert sha256sum(tree, data)[0] == 0


def test_a_moved_file_is_told_once_and_the_same_name_goes_first(tmp_path: Path) -> None:
    root = tmp_path / "t"
    for name in ("a/one.py", "a/two.py", "a/__init__.py", "a/empty", "a/copied", "a/lost"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("" if name in ("a/__init__.py", "a/empty") else "lost" if name == "a/lost" else "same")
        (root / name).chmod(0o644)
    data = render(*read_tree(os.fsencode(root)))
    (root / "b").mkdir()
    (root / "a/two.py").rename(root / "b/first")
    (root / "a/one.py").rename(root / "b/one.py")
    (root / "a/__init__.py").rename(root / "b/__init__.py")
    (root / "a/empty").rename(root / "b/nothing")
    (root / "a/lost").unlink()
    (root / "b/copy").write_text("same")
    assert shown(held(os.fsencode(root), data)) == {
        "missing": ["a/empty: expected a file, found nothing", "a/lost: expected a file, found nothing"],
        "moved": ["a/__init__.py -> b/__init__.py", "a/one.py -> b/one.py", "a/two.py -> b/copy"],
        "extra": [
            "b: expected nothing, found a directory",
            "b/first: expected nothing, found a file",
            "b/nothing: expected nothing, found a file",
        ],
    }
