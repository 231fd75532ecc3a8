# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any, Dict

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._native.architectures import Architecture
from ansible_collections.ddtree.fleet.plugins.module_utils._native.request import Group, parse_request
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import PatchError


def given(*files: Any, **more: Any) -> Dict[str, Any]:
    return {"files": list(files), "require_arch": [], "libraries": True, "glibc": True, **more}


def test_an_entry_has_its_own_architectures_or_the_common_ones() -> None:
    own = {"files": "b/*.so", "require_arch": ["sm_90a"]}
    request = parse_request(
        given("a/*.so", own, {"files": "c/*.so", "require_arch": []}, require_arch=["host", "sm_103"])
    )
    assert request.groups == (
        Group("a/*.so", (Architecture(103),), True),
        Group("b/*.so", (Architecture(90, "a"),), False),
        Group("c/*.so", (), False),
    )


@pytest.mark.parametrize(
    ("request_given", "problem"),
    [
        (given(), "native.files: at least one pattern is needed, such as sgl_kernel/**/*.so"),
        (given("a.so", 7), "native.files[1]: a pattern such as sgl_kernel/**/*.so is needed"),
        (given({"require_arch": []}), "native.files[0]: a pattern such as sgl_kernel/**/*.so is needed"),
        (given({"files": ["a.so"]}), "native.files[0]: a pattern such as sgl_kernel/**/*.so is needed"),
        (
            given({"file": "a.so"}),
            "native.files[0]: unknown key file (did you mean files?); known are files, require_arch",
        ),
        (given("/a.so"), "native.files[0] (/a.so): it must be relative to site-packages and stay there"),
        (given("a/../../b.so"), "native.files[0] (a/../../b.so): it must be relative to site-packages and stay there"),
        (
            given("a.so", require_arch=["10.3"]),
            "native.files[0] (a.so): require_arch: '10.3' is no architecture such as sm_90, sm_103a or sm_120f, nor the word host",
        ),
        (given({"files": "a.so", "require_arch": {"sm_90": 1}}), "native.files[0]: require_arch must be a list"),
    ],
)
def test_a_malformed_request_is_refused(request_given: Dict[str, Any], problem: str) -> None:
    with pytest.raises(PatchError) as error:
        parse_request(request_given)
    assert str(error.value) == problem


@pytest.mark.parametrize(
    ("pattern", "file", "matches"),
    [
        ("sgl_kernel/**/*.so", "sgl_kernel/a.so", True),
        ("sgl_kernel/**/*.so", "sgl_kernel/sm100/x/a.so", True),
        ("sgl_kernel/**/*.so", "sgl_kernel.so", False),
        ("sgl_kernel/*.so", "sgl_kernel/sm100/a.so", False),
        ("**/*", "sgl_kernel/sm100/a.so.1", True),
        ("sgl_kernel/**", "sgl_kernel/sm100/a.so.1", True),
        ("lib/libx.so.?", "lib/libx.so.1", True),
        ("lib/libx.so.?", "lib/libx.so.10", False),
        ("lib/lib[x+.so", "lib/lib[x+.so", True),
        ("*.so", "a\nb.so", True),
        ("a.so", "axso", False),
    ],
)
def test_which_files_a_pattern_means(pattern: str, file: str, matches: bool) -> None:
    assert parse_request(given(pattern)).groups[0].matches(file) is matches
