# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Callable, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._gpu_host import HostError
from ansible_collections.ddtree.fleet.plugins.module_utils._native import host as native_host
from ansible_collections.ddtree.fleet.plugins.module_utils._native.elf import Dynamic
from ansible_collections.ddtree.fleet.plugins.module_utils._native.host import (
    ENVIRONMENT,
    OWN,
    SYSTEM,
    Found,
    Libraries,
    index_libraries,
    read_host,
)
from ansible_collections.ddtree.fleet.tests.unit.libraries import library

STANDIN = Path(__file__).parents[4] / "fleet" / "nvidia_smi"
MACHINE = os.uname().machine


def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")


@pytest.mark.parametrize(("kind", "architecture"), [("b300", "sm_103"), ("rtx_pro_6000", "sm_120")])
def test_the_architectures_of_the_hosts_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, architecture: str
) -> None:
    shutil.copytree(STANDIN / kind, tmp_path / "data")
    program = (STANDIN / "nvidia_smi.py").read_text(encoding="utf-8")
    program = program.replace('Path("/etc/nvidia-smi-standin")', f"Path({str(tmp_path / 'data')!r})")
    nvidia_smi(tmp_path, monkeypatch, f"#!{sys.executable}\n{program}")
    assert list(map(str, read_host().architectures)) == [architecture]


def test_a_host_without_gpus_has_no_architectures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    host = read_host()
    assert (host.machine, list(host.architectures)) == (MACHINE, [])
    assert host.glibc == platform.libc_ver()[1]


def test_a_driver_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "#!/bin/sh\necho No devices were found\nexit 6\n")
    with pytest.raises(HostError, match="^nvidia-smi failed: No devices were found$"):
        read_host()
    assert list(read_host(with_gpus=False).architectures) == []


def test_an_answer_that_is_no_capability_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "#!/bin/sh\necho '0, NVIDIA, GPU-0, [N/A], 275040, 0, 580.95, Disabled'\n")
    with pytest.raises(
        HostError, match=r"^nvidia-smi names '\[N/A\]' as the compute capability of a GPU; update the driver$"
    ):
        read_host()


@pytest.mark.parametrize("answer", ["musl 1.2", "", None, ValueError])
def test_another_c_library_is_not_taken_for_glibc(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    def confstr(_name: str) -> object:
        if answer is ValueError:
            raise ValueError("unrecognized configuration name")
        return answer

    monkeypatch.setattr(native_host.os, "confstr", confstr)
    assert read_host(with_gpus=False).glibc == ""


@pytest.fixture(name="write")
def write_fixture(tmp_path: Path) -> Callable[[str], str]:
    def write(name: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(library())
        return str(path)

    return write


@pytest.mark.parametrize("origin", ["$ORIGIN", "${ORIGIN}"])
def test_a_librarys_own_path_comes_first(tmp_path: Path, write: Callable[[str], str], origin: str) -> None:
    user, own, other = write("pkg/x.so"), write("pkg/lib/libc.so.6"), write("other/libc.so.6")
    libraries = Libraries(MACHINE, {"libc.so.6": other})
    assert libraries.find("libc.so.6", user, Dynamic(runpath=f"/nowhere::{origin}/lib")) == Found(own, OWN)
    assert libraries.find("libc.so.6", user, Dynamic(rpath=f"{origin}/lib", runpath="/nowhere")) != Found(own, OWN)
    assert libraries.find("libc.so.6", user, Dynamic(rpath=f"{origin}/lib")) == Found(own, OWN)
    (tmp_path / "linked.so").symlink_to(user)
    assert libraries.find("libc.so.6", str(tmp_path / "linked.so"), Dynamic(runpath=origin + "/lib")) == Found(own, OWN)


def test_a_needed_path_is_taken_as_it_is(write: Callable[[str], str]) -> None:
    path = write("x.so")
    assert Libraries(MACHINE, {}).find(path, path, Dynamic()) == Found(path, OWN)
    assert Libraries(MACHINE, {}).find("/nowhere/x.so", path, Dynamic()) is None


@pytest.mark.parametrize("cache", [native_host.CACHE, "/nowhere"])
def test_the_system_comes_before_the_environment(write: Callable[[str], str], cache: str) -> None:
    found = Libraries(MACHINE, {"libc.so.6": write("libc.so.6")}, cache).find("libc.so.6", "/x.so", Dynamic())
    assert found and found.where == SYSTEM and os.path.samefile(found.path, _loaded("libc.so.6"))


def test_what_only_the_environment_has_is_found_there(write: Callable[[str], str]) -> None:
    index: Dict[str, str] = {"libtorch.so": write("torch/lib/libtorch.so")}
    assert Libraries(MACHINE, index).find("libtorch.so", "/x.so", Dynamic()) == Found(index["libtorch.so"], ENVIRONMENT)
    assert Libraries(MACHINE, index).find("libnowhere.so.1", "/x.so", Dynamic()) is None


def test_ld_library_path_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str], str]
) -> None:
    write("libnowhere.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert Libraries(MACHINE, {}).find("libnowhere.so.1", "/x.so", Dynamic()) is None


def test_the_cache_of_another_processor_does_not_count(write: Callable[[str], str], tmp_path: Path) -> None:
    entry = {"x86_64": 0x0303, "aarch64": 0x0A03}
    cache, path = tmp_path / "cache", write("libcached.so.1")
    strings = b"libcached.so.1\0" + path.encode() + b"\0"
    header = native_host.CACHE_HEADER.size + native_host.CACHE_ENTRY.size
    for machine, flags in entry.items():
        data = native_host.CACHE_HEADER.pack(native_host.CACHE_MAGIC, 1, len(strings))
        data += native_host.CACHE_ENTRY.pack(flags, header, header + 15, 0, 0) + strings
        cache.write_bytes(b"ld.so-1.7.0 and an older table" + data)
        found = {one: Libraries(one, {}, str(cache)).find("libcached.so.1", "/x.so", Dynamic()) for one in entry}
        assert found == {one: Found(path, SYSTEM) if one == machine else None for one in entry}


@pytest.mark.parametrize("data", [b"", b"glibc-ld.so.cache1.1", b"x" * 100, b"glibc-ld.so.cache1.1" + b"\xff" * 100])
def test_a_cache_of_another_form_is_passed_over(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "cache").write_bytes(data)
    found = Libraries(MACHINE, {}, str(tmp_path / "cache")).find("libc.so.6", "/x.so", Dynamic())
    assert found and found.where == SYSTEM


def test_symbol_versions_that_a_library_offers(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(library(defined=["X_1"]))
    (tmp_path / "y.so").write_bytes(b"no library")
    libraries = Libraries(MACHINE, {})
    assert libraries.defined(str(tmp_path / "x.so")) == {"X_1"}
    assert libraries.defined(str(tmp_path / "y.so")) == libraries.defined("/nowhere") == frozenset()


def test_libraries_are_indexed_by_their_names(tmp_path: Path, write: Callable[[str], str]) -> None:
    expected = {name: write(name) for name in ("a/x.so", "a/b/libz.so.1.2", "libq-1a2b.so.2600")}
    for name in ("a/x.so.py", "a/so", "x.sox", ".so"):
        write(name)
    assert index_libraries(str(tmp_path)) == expected


def _loaded(name: str) -> str:
    """The path of a library that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return next(line.split()[-1] for line in maps if line.rstrip().endswith(f"/{name}"))
