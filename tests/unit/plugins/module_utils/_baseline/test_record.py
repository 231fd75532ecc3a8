# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import base64
import hashlib
import random
import string
from pathlib import Path
from typing import Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Expected
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.record import parse_record
from ansible_collections.ddtree.fleet.tests.unit.packages import Packages, csv_text, found
from ansible_collections.ddtree.fleet.tests.unit.patched import failed, recorded

RECORDS = Path(__file__).parent / "records"
# The content of which real RECORDs have the hash: nothing, and what pip writes into INSTALLER.
KNOWN = {recorded(text.encode()): text for text in ("", "pip\n")}
HOSTILE = string.ascii_letters + " ,\"'\r\n\t\\#;:=*~\u00e9\u4e2d\u2028\U0001f600\udcff\x01\x7f"


def real(name: str) -> str:
    return (RECORDS / f"{name}.RECORD").read_bytes().decode()


def install(packages: Packages, name: str) -> Dict[str, Expected]:
    """A shrunk RECORD of a real package, with those of its files whose content is known."""
    info = packages.site / f"{name}.dist-info"
    info.mkdir()
    (info / "RECORD").write_bytes(real(name).encode())
    files = parse_record(real(name))
    for path, expected in files.items():
        known = f"sha256={base64.urlsafe_b64encode(expected.digest).rstrip(b'=').decode()}"
        if known in KNOWN:
            packages.write(path, KNOWN[known])
    return files


def test_the_record_of_sglang_has_commas_in_names(tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    files = install(packages, "sglang-0.5.11")
    configs = "sglang/srt/layers/moe/moe_runner/triton_utils/configs/triton_3_1_0"
    assert f"{configs}/E=1,N=14336,device_name=NVIDIA_A100-SXM4-80GB,dtype=int8_w8a16.json" in files
    assert files["tools/get_version_tag.py"].digest.hex().startswith("d96fa82")
    verdict = packages.compare("record", "sglang")
    assert verdict.inventory is not None
    counts = verdict.inventory["counts"]
    assert (counts["equal"], counts["missing"], counts["unverified"]) == (7, 13, 1)
    packages.write(f"{configs}/E=1,N=14336,device_name=NVIDIA_A100-SXM4-80GB.json", "{}")
    packages.write("tools/other.py", "")
    assert found(packages.compare("record", "sglang"), "modified", "added") == {
        "modified": [f"{configs}/E=1,N=14336,device_name=NVIDIA_A100-SXM4-80GB.json"],
        "added": ["tools/other.py"],
    }


@pytest.mark.parametrize(
    ("name", "equal", "missing"),
    [
        ("numpy-2.3.5", 2, 11),  # lists a compiled file with a hash
        ("pip-23.0.1", 1, 8),  # lists compiled files without
        ("setuptools-66.1.1", 3, 7),
        ("dill-0.4.1", 1, 6),
        ("soundfile-0.14.0", 2, 10),  # has modules of no package, and a directory that it does not own by __init__.py
        ("torch-2.13.0+cpu", 2, 9),
        ("plotly-7.1.0", 3, 12),  # has files below share/
    ],
)
def test_real_records_with_what_of_them_is_known(tmp_path: Path, name: str, equal: int, missing: int) -> None:
    packages = Packages(tmp_path)
    install(packages, name)
    verdict = packages.compare("record", name.partition("-")[0])
    assert verdict.inventory is not None
    counts = verdict.inventory["counts"]
    assert (counts["equal"], counts["missing"], counts["modified"], counts["added"]) == (equal, missing, 0, 0)
    assert not any("__pycache__" in path for path in verdict.inventory["missing"])


def test_distributions_that_share_a_namespace(tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    names = ("nvidia_cublas-13.1.1.3", "nvidia_cufft-12.0.0.61", "cuda_bindings-13.5.0", "cuda_pathfinder-1.9.1")
    for name in names:
        install(packages, name)
    packages.write("nvidia/cu13/lib/libcufft.so.12", "other")
    packages.write("nvidia/cu13/lib/libevil.so", "")
    packages.write("cuda/bindings/new.py", "")
    packages.write("cuda/other/new.py", "")
    assert found(packages.compare("record", "nvidia-cublas"), "modified", "added") == {}
    assert found(packages.compare("record", "nvidia_cufft"), "modified", "added") == {
        "modified": ["nvidia/cu13/lib/libcufft.so.12"]
    }
    assert found(packages.compare("record", "cuda.bindings"), "added") == {"added": ["cuda/bindings/new.py"]}
    assert found(packages.compare("record", "all"), "added") == {
        "added": ["cuda/bindings/new.py", "cuda/other/new.py", "nvidia/cu13/lib/libevil.so"]
    }


def test_every_name_comes_back_from_a_record() -> None:
    numbers = random.Random(20260701)
    for _round in range(300):
        names = {"".join(numbers.choices(HOSTILE, k=numbers.randint(1, 12))) + "x" for _name in range(8)}
        rows: List[List[str]] = [
            [f"d/{name}", recorded(name.encode("utf-8", "surrogateescape")), "1"] for name in names
        ]
        text = csv_text(rows)
        read = parse_record(text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape"))
        assert read == {
            f"d/{name}": Expected("sha256", hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())
            for name in names
        }


def test_a_damaged_record_is_read_or_named_by_line() -> None:
    numbers = random.Random(7)
    text = real("sglang-0.5.11")
    for _round in range(500):
        damaged = list(text)
        for _change in range(numbers.randint(1, 4)):
            damaged[numbers.randrange(len(damaged))] = numbers.choice(',"\r\n\0=a\ufeff')
        try:
            parse_record("".join(damaged)[: numbers.randint(1, len(text))])
        except ValueError as error:
            assert str(error).startswith("line ") or str(error) == "lists no file"


def test_quoted_names_line_ends_and_a_byte_order_mark() -> None:
    expected = {'a "b",c.py': Expected(), "d.py": Expected(), "row": Expected(), "two\nlines": Expected()}
    for end in ("\r\n", "\n"):
        text = end.join(['"a ""b"",c.py",,1', "./d.py,,", "row", '"two\nlines",,', "dir/,,", ""])
        assert parse_record(text) == parse_record("\ufeff" + text) == expected


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha384", "sha512", "blake2b"])
def test_hashes_of_all_algorithms_padded_or_not(algorithm: str) -> None:
    digest = hashlib.new(algorithm, b"\xff" * 7).digest()
    spellings = {encode(digest).decode() for encode in (base64.urlsafe_b64encode, base64.b64encode)}
    spellings |= {text.rstrip("=") for text in spellings}
    for text in spellings:
        for name in (algorithm, algorithm.upper()):
            assert parse_record(f"a,{name}={text},7\n") == {"a": Expected(algorithm, digest)}


def test_an_algorithm_that_nobody_knows_is_named() -> None:
    assert parse_record("a,md4=xyz,1\nb,shake_128=xyz,1\n") == {
        "a": Expected(unknown="md4"),
        "b": Expected(unknown="shake_128"),
    }


GOOD = recorded(b"x")
OTHER = recorded(b"y")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,,\nb,c,d,e\n", "line 2 is not path,hash,size"),
        ("a,,\n,x,\n", "line 2 is not path,hash,size"),
        ('"two\nlines",,\n,,\n', "line 3 is not path,hash,size"),
        ("a,sha256,1\n", "line 1: 'sha256' is not algorithm=hash"),
        ("a,sha256=,1\n", "line 1: 'sha256=' is not algorithm=hash"),
        ("a,sha256=abc,1\n", "line 1: 'abc' is no sha256 hash in base64"),
        ("a,sha256=\u00e9,1\n", "line 1: '\u00e9' is no sha256 hash in base64"),
        ('a,,\n"b,,\nc,,\n', "line 2 is no CSV: unexpected end of data"),
        ('a,,\n"b"c,,\n', "line 2 is no CSV: ',' expected after '\"'"),
        (f"a,{GOOD},1\nb,,\n./a,{OTHER},1\n", "line 3 gives another hash for ./a than line 1"),
        ("", "lists no file"),
        ("dir/,,\n", "lists no file"),
    ],
)
def test_a_malformed_row_is_named_by_its_line(text: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_record(text)
    assert str(raised.value) == said


def test_a_file_listed_twice_with_one_hash_is_one() -> None:
    expected = {"a": Expected("sha256", hashlib.sha256(b"x").digest())}
    for rows in ([GOOD, GOOD], ["", GOOD], [GOOD, ""]):
        assert parse_record("".join(f"a,{row},\n" for row in rows)) == expected


def test_a_malformed_record_is_one_verdict(tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    info = packages.install()
    (info / "RECORD").write_text("pkg/a.py,,\nb,c,d,e\n")
    assert failed(packages.compare("record")) == [
        "baseline record of pkg: expected one to compare with, found pkg-1.0.dist-info/RECORD line 2 is not path,hash,size "
        "(reinstall the distribution, or compare with another baseline)"
    ]
