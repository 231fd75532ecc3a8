# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import List

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._native import cuobjdump
from ansible_collections.ddtree.fleet.plugins.module_utils._native.cuobjdump import (
    CuobjdumpError,
    find_tools,
    list_images,
)

LISTING = r"""
echo 'cuobjdump info    : No PTX file found to extract from x.so' >&2
echo 'ELF file    1: x.1.sm_90a.cubin'
echo 'ELF file   12: x.sm_80.12.sm_120.cubin'
echo 'PTX file    1: x.1.sm_100f.ptx'
echo 'ELF file    2: x.2.sm_9999.cubin'
"""


def tool(path: Path, lines: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


def test_a_listing_is_read(tmp_path: Path) -> None:
    images = list_images([tool(tmp_path / "cuobjdump", LISTING)], "x.so")
    assert sorted(map(str, images)) == ["compute_100f", "sm_120", "sm_90a"]


def test_the_next_tool_is_asked_where_one_fails(tmp_path: Path) -> None:
    old = tool(tmp_path / "old", "echo 'cuobjdump fatal   : Invalid gpu architecture in fatbin' >&2; exit 255")
    assert list_images([old, tool(tmp_path / "new", LISTING)], "x.so")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("echo 'cuobjdump fatal   : bad' >&2; exit 255", "/tool lists nothing: cuobjdump fatal : bad"),
        ("echo 'ELF file    1: x.1.sm_90a.cubin'; exit 1", "/tool lists nothing: ELF file 1: x.1.sm_90a.cubin"),
        ("exit 0", "/tool lists nothing: "),
        ("sleep 5; exit", "/tool did not answer within 0.2 s"),
    ],
)
def test_no_listing_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, problem: str) -> None:
    monkeypatch.setattr(cuobjdump, "ANSWER_SECONDS", 0.2)
    with pytest.raises(CuobjdumpError) as error:
        list_images([tool(tmp_path / "tool", lines)], "x.so")
    assert str(error.value) == f"{tmp_path}{problem}"


def test_a_tool_that_does_not_answer_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuobjdump, "ANSWER_SECONDS", 0.2)
    hanging, good = tool(tmp_path / "hanging", "exec sleep 5"), tool(tmp_path / "good", LISTING)
    tools = [hanging, good]
    assert list_images(tools, "x.so")
    assert tools == [good]


def test_without_a_tool_the_message_says_which_package_has_it() -> None:
    with pytest.raises(
        CuobjdumpError, match="^there is no cuobjdump that answers, such as that of the package nvidia-cuda-cuobjdump$"
    ):
        list_images([], "x.so")


def test_tools_of_the_environment_come_before_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "venv" / "lib" / "[site]"
    places: List[Path] = [
        site / "nvidia" / "cu13" / "bin" / "cuobjdump",
        site / "nvidia" / "cu12" / "bin" / "cuobjdump",
        site / "triton" / "backends" / "nvidia" / "bin" / "cuobjdump",
        tmp_path / "bin" / "cuobjdump",
    ]
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    expected = [tool(place, LISTING) for place in places]
    (site / "nvidia" / "cu11" / "bin").mkdir(parents=True)
    (site / "nvidia" / "cu11" / "bin" / "cuobjdump").write_text("not executable")
    assert find_tools(str(tmp_path / "venv"), str(site)) == expected
