# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._native.proof import Proof, prove
from ansible_collections.ddtree.fleet.plugins.module_utils._native.request import parse_request
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import Environment, PatchError
from ansible_collections.ddtree.fleet.tests.unit.libraries import container, entry, library, ptx, sass

RECORDED = Path(__file__).parents[4] / "recorded" / "sglang-kernel-0.4.2" / "libraries.zip"
MACHINE, OTHER = (62, 183) if os.uname().machine == "x86_64" else (183, 62)
NO_CODE = "install a build of the package for this GPU, or name the library that this GPU loads"


class Fake:
    """An environment of small libraries, on a host with the GPUs that it is told to have."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.site = root / "venv", root / "venv" / "lib" / "python3.12" / "site-packages"
        self.site.mkdir(parents=True)
        self._programs = root / "programs"
        self._programs.mkdir()
        monkeypatch.setenv("PATH", str(self._programs))

    def program(self, path: Path, lines: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(0o755)

    def gpus(self, *capabilities: str) -> None:
        row = "{}, NVIDIA, GPU-{}, {}, 275040, 0, 580.95, Disabled"
        rows = [row.format(index, index, capability) for index, capability in enumerate(capabilities)]
        self.program(self._programs / "nvidia-smi", "\n".join(f"echo '{row}'" for row in rows))

    def write(self, file: str, code: Optional[bytes] = None, **more: Any) -> None:
        path = self.site / file
        path.parent.mkdir(parents=True, exist_ok=True)
        sections = {} if code is None else {".nv_fatbin": code}
        path.write_bytes(library(**{"sections": sections, "machine": MACHINE, **more}))

    def prove(self, *files: Any, require_arch: Any = (), libraries: bool = False, glibc: bool = False) -> Proof:
        given: Dict[str, Any] = {"files": list(files), "require_arch": list(require_arch)}
        environment = Environment(str(self.root), str(self.site), sys.executable)
        return prove(environment, parse_request({**given, "libraries": libraries, "glibc": glibc}))


@pytest.fixture(name="fake")
def fake_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    return Fake(tmp_path, monkeypatch)


def failed(proof: Proof) -> List[str]:
    return [check.sentence() for check in proof.checks if not check.passed]


def passed(proof: Proof) -> List[str]:
    return [check.sentence() for check in proof.checks if check.passed]


def test_code_for_the_gpu_passes(fake: Fake) -> None:
    fake.write("k/a.so", container(sass(100), sass(90)) + container(sass(103, 0x100000)))
    proof = fake.prove("k/*.so", require_arch=["sm_103"])
    assert failed(proof) == [] == proof.warnings
    assert (
        "GPU code for sm_103 in k/*.so: expected one library with code for it, found 2 of 2 fatbins of k/a.so"
        in passed(proof)
    )


def test_no_code_for_the_gpu_fails_and_says_what_there_is(fake: Fake) -> None:
    fake.write("k/a.so", container(sass(100, 0x100000), ptx(120), sass(90)))
    expected = "GPU code for sm_103 in k/*.so: expected one library with code for it, found sm_90, sm_100a, compute_120"
    assert failed(fake.prove("k/*.so", require_arch=["sm_103"])) == [f"{expected} ({NO_CODE})"]


def test_libraries_without_gpu_code_cover_no_gpu(fake: Fake) -> None:
    fake.write("k/a.so")
    (sentence,) = failed(fake.prove("k/*.so", require_arch=["sm_103"]))
    assert ", found no GPU code (" in sentence


def test_code_that_is_to_be_compiled_passes_with_a_warning(fake: Fake) -> None:
    fake.write("k/a.so", container(sass(90), ptx(90)))
    proof = fake.prove("k/*.so", require_arch=["sm_103"])
    assert failed(proof) == []
    assert proof.warnings == ["k/a.so has only PTX for sm_103 in 1 of its fatbins: it will be compiled at first use"]
    assert fake.prove("k/*.so", require_arch=["sm_90"]).warnings == []


def test_code_for_a_part_of_the_kernels_passes_with_a_warning(fake: Fake) -> None:
    fake.write("k/a.so", container(sass(120)) + container(sass(90)) * 2)
    proof = fake.prove("k/*.so", require_arch=["sm_120"])
    assert failed(proof) == []
    assert proof.warnings == ["k/a.so has no code for sm_120 in 2 of 3 fatbins: kernels in those cannot be launched"]


def test_one_library_of_a_pattern_is_enough_and_the_best_one_is_named(fake: Fake) -> None:
    fake.write("k/sm90/a.so", container(sass(90)))
    fake.write("k/sm100/a.so", container(ptx(90)))
    fake.write("k/sm120/a.so", container(sass(120)))
    proof = fake.prove("k/**/*.so", require_arch=["sm_90", "sm_120"])
    assert failed(proof) == [] == proof.warnings
    assert [check.found for check in proof.checks if check.name.startswith("GPU")] == [
        "1 of 1 fatbins of k/sm90/a.so",
        "1 of 1 fatbins of k/sm120/a.so",
    ]


def test_each_entry_is_asked_for_its_own(fake: Fake) -> None:
    fake.write("k/sm90/a.so", container(sass(90)))
    fake.write("k/sm100/a.so", container(sass(100)))
    entries = [{"files": "k/sm90/*", "require_arch": ["sm_103"]}, {"files": "k/sm100/*", "require_arch": ["sm_103"]}]
    (sentence,) = failed(fake.prove(*entries))
    assert sentence.startswith("GPU code for sm_103 in k/sm90/*:")


def test_a_pattern_that_matches_nothing_fails_by_name(fake: Fake) -> None:
    fake.write("k/a.so")
    assert failed(fake.prove("k/*.so", "q/**/*.so")) == [
        f"native libraries in q/**/*.so: expected libraries for {os.uname().machine}, found 0 "
        f"(patterns are relative to {fake.site}, and only names such as x.so or x.so.1 count)"
    ]


def test_the_hosts_gpus_are_asked_for(fake: Fake) -> None:
    fake.write("k/a.so", container(sass(103, 0x100000)))
    fake.gpus("10.3", "10.3", "12.0")
    proof = fake.prove("k/*.so", require_arch=["host"])
    assert [sentence[:22] for sentence in failed(proof)] == ["GPU code for sm_120 in"]
    assert proof.result["host"]["architectures"] == ["sm_103", "sm_120"]
    fake.gpus("10.3")
    assert failed(fake.prove("k/*.so", require_arch=["host"])) == []


def test_a_host_without_gpus_is_not_verified_and_fails_nothing(fake: Fake) -> None:
    fake.write("k/a.so", container(sass(90)))
    proof = fake.prove("k/*.so", require_arch=["host"])
    said = "GPU code for this host, which has no GPU (no nvidia-smi); name the architecture to ask for it"
    assert (failed(proof), proof.warnings) == ([], [f"not verified: {said}"])
    assert proof.result["not_verified"] == [said]


def test_a_driver_that_does_not_answer_fails_where_the_host_is_asked_for(fake: Fake) -> None:
    fake.write("k/a.so", container(sass(90)))
    fake.program(fake.root.parent / "programs" / "nvidia-smi", "echo Driver/library version mismatch; exit 18")
    said = "nvidia-smi failed: Driver/library version mismatch"
    assert failed(fake.prove("k/*.so", require_arch=["host"])) == [
        f"GPUs of this host: expected nvidia-smi names them, found {said} "
        "(repair the GPU driver; require_arch of host needs its answer)"
    ]
    proof = fake.prove("k/*.so", require_arch=["sm_90"])
    assert (failed(proof), proof.result["not_verified"]) == ([], [f"the GPUs of this host: {said}"])


def test_code_of_an_unknown_form_is_not_verified_and_passes_no_requirement(fake: Fake) -> None:
    fake.write("k/a.so", container(sass(90), entry(0x100, 0)))
    no_tool = "there is no cuobjdump that answers, such as that of the package nvidia-cuda-cuobjdump"
    said = f"k/a.so: fatbin entries of kind 0x100; {no_tool}"
    proof = fake.prove("k/*.so", require_arch=["sm_90", "sm_120"])
    assert [sentence.split(", found ")[1] for sentence in failed(proof)] == [
        f"not verified: {said} (install a cuobjdump that can read it, in the environment or on the host (package nvidia-cuda-cuobjdump))"
    ]
    assert proof.result["not_verified"] == [said]
    assert proof.result["files"][0]["problem"] == f"fatbin entries of kind 0x100; {no_tool}"


def test_cuobjdump_of_the_environment_is_asked_for_what_is_unknown(fake: Fake) -> None:
    fake.write("k/a.so", container(entry(0x100, 0)))
    fake.program(fake.site / "nvidia" / "cu13" / "bin" / "cuobjdump", "echo 'ELF file    1: a.1.sm_120a.cubin'")
    proof = fake.prove("k/*.so", require_arch=["sm_120"])
    assert failed(proof) == [] == proof.warnings
    assert "GPU code for sm_120 in k/*.so: expected one library with code for it, found code in k/a.so" in passed(proof)
    assert proof.result["files"] == [{"file": "k/a.so", "sass": ["sm_120a"], "reader": "cuobjdump"}]


@pytest.mark.parametrize(
    ("kept", "problem"),
    [
        (100, "truncated: 112 bytes are expected at offset 64, the file has 100"),
        (-1, "truncated: 192 bytes are expected at offset "),
        (-200, "truncated: a segment ends at "),
    ],
)
def test_a_truncated_library_fails_by_name(fake: Fake, kept: int, problem: str) -> None:
    fake.write("k/a.so", container(sass(90)))
    path = fake.site / "k" / "a.so"
    path.write_bytes(path.read_bytes()[:kept])
    (sentence,) = failed(fake.prove("k/*.so"))
    assert sentence.startswith(f"native library in k/a.so: expected intact, found {problem}")
    assert sentence.endswith(" (install its package again)")


def test_a_dangling_link_fails_by_name(fake: Fake) -> None:
    fake.write("k/a.so")
    (fake.site / "k" / "b.so").symlink_to("nowhere.so")
    (sentence,) = failed(fake.prove("k/*.so"))
    assert sentence.startswith("native library in k/b.so: expected intact, found No such file or directory")


def test_libraries_of_another_processor_are_named_and_do_not_count(fake: Fake) -> None:
    fake.write("k/a.so", container(sass(90)), machine=OTHER)
    fake.write("k/b.so", container(sass(120)))
    proof = fake.prove("k/*.so", require_arch=["sm_120"])
    other = {62: "x86_64", 183: "aarch64"}[OTHER]
    assert (failed(proof), proof.result["not_verified"]) == ([], [f"k/a.so: a library for {other}"])
    assert [sentence.split(": ")[0] for sentence in failed(fake.prove("k/a.so"))] == ["native libraries in k/a.so"]


def test_needed_libraries_that_are_nowhere_are_named(fake: Fake) -> None:
    fake.write("torch/lib/libtorch.so", soname="libtorch.so")
    fake.write("k/a.so", needed=["libtorch.so", "libc.so.6", "libcudart.so.12", "libnowhere.so.1"])
    fake.write("k/b.so", needed=["libcudart.so.12"])
    proof = fake.prove("k/*.so", libraries=True)
    assert failed(proof) == [
        "needed libraries: expected every needed library to be found, found 2 missing: libcudart.so.12 for k/a.so and 1 more; "
        "libnowhere.so.1 for k/a.so (install the packages that have them, in the environment or on the host)"
    ]
    assert proof.result["files"][0] == {
        "file": "k/a.so",
        "unresolved": ["libcudart.so.12", "libnowhere.so.1"],
        "from_environment": ["libtorch.so"],
    }
    assert failed(fake.prove("k/*.so")) == []


def test_needed_libraries_that_are_found_pass(fake: Fake) -> None:
    fake.write("torch/lib/libtorch.so")
    fake.write("k/a.so", needed=["libtorch.so", "libc.so.6"])
    proof = fake.prove("k/*.so", libraries=True)
    assert (failed(proof), proof.warnings) == ([], [])


def test_the_drivers_library_is_not_verified_without_a_gpu_and_fails_with_one(fake: Fake) -> None:
    fake.write("k/a.so", needed=["libcuda.so.1", "libnvidia-ml.so.1"])
    fake.write("k/b.so", needed=["libcuda.so.1"])
    proof = fake.prove("k/*.so", libraries=True)
    assert failed(proof) == []
    assert proof.result["not_verified"] == [
        "libcuda.so.1 of the GPU driver, which this host without GPU has not, for k/a.so and 1 more",
        "libnvidia-ml.so.1 of the GPU driver, which this host without GPU has not, for k/a.so",
    ]
    fake.gpus("10.3")
    (sentence,) = failed(fake.prove("k/*.so", libraries=True))
    assert "found 2 missing: libcuda.so.1 for k/a.so and 1 more; libnvidia-ml.so.1 for k/a.so" in sentence


def test_versions_that_this_host_lacks_are_named(fake: Fake) -> None:
    lacking = [
        ("libc.so.6", "GLIBC_2.17", False),
        ("libc.so.6", "GLIBC_9.99", False),
        ("libc.so.6", "GLIBC_9.98", True),
    ]
    fake.write("k/a.so", versions=lacking)
    fake.write("k/libown.so.1", defined=["OWN_1"])
    fake.write("k/b.so", runpath="$ORIGIN", versions=[("libown.so.1", "OWN_2", False), ("libown.so.1", "OWN_1", False)])
    proof = fake.prove("k/*.so", glibc=True)
    (sentence,) = failed(proof)
    assert sentence.startswith("symbol versions: expected only versions that this host has (glibc 2.")
    assert ", found 2 missing: GLIBC_9.99 of /" in sentence
    assert f"; OWN_2 of {fake.site}/k/libown.so.1 for k/b.so (use a host with a newer system" in sentence
    assert failed(fake.prove("k/*.so")) == []


def test_versions_that_this_host_has_pass(fake: Fake) -> None:
    fake.write("k/a.so", versions=[("libc.so.6", "GLIBC_2.17", False), ("libc.so.6", "GLIBC_9.98", True)])
    fake.write("k/b.so", versions=[("libnowhere.so", "NOWHERE_1", False)])
    proof = fake.prove("k/*.so", glibc=True)
    assert failed(proof) == []
    said = "the symbol versions of libnowhere.so, which is not found, for k/b.so"
    assert (proof.result["not_verified"], proof.warnings) == ([said], [f"not verified: {said}"])


def test_a_directory_that_cannot_be_read_is_named(fake: Fake) -> None:
    fake.site = fake.site / "gone"
    with pytest.raises(PatchError, match=f"^{fake.site}: No such file or directory$"):
        fake.prove("**/*")


def test_the_result_stays_small(fake: Fake) -> None:
    for number in range(250):
        fake.write(f"k/{number:03}.so", container(sass(90)))
    fake.write("k/plain.so", needed=["libc.so.6"])
    result = fake.prove("k/*.so").result
    assert result["counts"] == {"files": 251, "with_gpu_code": 250}
    assert len(result["files"]) == 200
    assert result["files"][7] == {
        "file": "k/007.so",
        "sass": ["sm_90"],
        "fatbins": 1,
        "entries": 1,
        "reader": "headers",
    }


def test_a_name_that_is_not_utf8_is_shown(fake: Fake) -> None:
    fake.write("k/\udcff.so", container(sass(90)), needed=["lib\udcff.so"])
    proof = fake.prove("k/*.so", libraries=True)
    "".join(failed(proof)).encode()
    assert "\\xff.so" in failed(proof)[0]


@pytest.mark.parametrize(
    ("pattern", "gpu", "covered"),
    [
        ("sgl_kernel/sm100/*.so", "sm_103", "56 of 56 fatbins of sgl_kernel/sm100/common_ops.abi3.so"),
        ("sgl_kernel/sm100/*.so", "sm_120", "56 of 56 fatbins of sgl_kernel/sm100/common_ops.abi3.so"),
        ("sgl_kernel/sm100/*.so", "sm_121", ""),
        ("sgl_kernel/flash_ops*.so", "sm_90", "372 of 372 fatbins of sgl_kernel/flash_ops.abi3.so"),
        ("sgl_kernel/flash_ops*.so", "sm_120", ""),
        ("sgl_kernel/flashmla_ops*.so", "sm_103", "25 of 25 fatbins of sgl_kernel/flashmla_ops.abi3.so"),
        ("sgl_kernel/flashmla_ops*.so", "sm_120", ""),
        ("lib/*.so", "sm_120", "1 of 1 fatbins of lib/mscclpp.so"),
    ],
)
def test_the_kernels_that_sglang_is_deployed_with(fake: Fake, pattern: str, gpu: str, covered: str) -> None:
    with zipfile.ZipFile(RECORDED) as libraries:
        libraries.extractall(fake.site)
    for path in fake.site.rglob("*.so"):  # taken for this host's processor, whichever that is
        data = path.read_bytes()
        path.write_bytes(data[:18] + bytes([MACHINE]) + data[19:])
    proof = fake.prove(pattern, require_arch=[gpu])
    (check,) = [check for check in proof.checks if check.name == f"GPU code for {gpu}"]
    assert check.passed is bool(covered)
    assert not covered or check.found == covered
