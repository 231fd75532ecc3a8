# Copyright: the contributors of ddtree.fleet
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in patch set does what README.md says of it.

Needs neither torch nor SGLang: ddtree_utils.py is read from the diff that adds it.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

PATCHSET = Path(__file__).resolve().parent / "patchset"
DDTREE_DIFFS = sorted(PATCHSET.glob("*.diff"))
UTILS = "sglang/srt/speculative/ddtree_utils.py"


def added_file(diffs: Sequence[Path], name: str) -> str:
    """Content of a file that one of the diffs adds."""
    for diff in diffs:
        header = rf"^--- /dev/null\n\+\+\+ b/{re.escape(name)}\n"
        section = re.search(rf"{header}(@@.+?)(?=^diff |\Z)", diff.read_text(encoding="utf-8"), re.M | re.S)
        if section:
            return "".join(f"{line[1:]}\n" for line in section[1].splitlines() if line.startswith("+"))
    raise AssertionError(f"no diff adds {name}")


@pytest.fixture(scope="module")
def utils() -> types.ModuleType:
    module = types.ModuleType("ddtree_utils")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(added_file(DDTREE_DIFFS, UTILS), UTILS, "exec"), module.__dict__)
    return module


def test_tree_is_compiled_to_first_children_and_siblings(utils: types.ModuleType) -> None:
    #      0
    #    1 2 3
    #   4   5 6
    tree = utils.compile_ddtree_retrieve([-1, 0, 0, 0, 1, 3, 3])
    assert tree.retrieve_next_token == (1, 4, -1, 5, -1, -1, -1)
    assert tree.retrieve_next_sibling == (-1, 2, 3, -1, -1, 6, -1)
    assert tree.parent == (-1, 0, 0, 0, 1, 3, 3)
    assert tree.num_nodes == 7
    assert not tree.is_chain


def test_every_node_is_reached_once(utils: types.ModuleType) -> None:
    tree = utils.compile_ddtree_retrieve([-1, 0, 1, 0, 1, 3, 0, 2])
    seen = []
    pending = [0]
    while pending:
        node = pending.pop()
        seen.append(node)
        pending += [n for n in (tree.retrieve_next_token[node], tree.retrieve_next_sibling[node]) if n != -1]
    assert sorted(seen) == list(range(tree.num_nodes))


@pytest.mark.parametrize(("budget", "depth", "nodes"), [(8, 7, 8), (3, 7, 4), (1, 1, 2)])
def test_chain_fits_budget_and_depth(utils: types.ModuleType, budget: int, depth: int, nodes: int) -> None:
    tree = utils.compile_ddtree_retrieve(utils.build_chain_parents(budget, depth))
    assert tree.num_nodes == nodes
    assert tree.is_chain
    assert set(tree.retrieve_next_sibling) == {-1}


@pytest.mark.parametrize(
    "parents", [[], [0], [-1, -1], [-1, 1], [-1, 2, 0], [-1, 0, True], [-1, 0.0], [-1, None]], ids=repr
)
def test_what_is_no_tree_is_refused(utils: types.ModuleType, parents: list[object]) -> None:
    with pytest.raises(ValueError):
        utils.compile_ddtree_retrieve(parents)


@pytest.mark.parametrize(("budget", "depth"), [(0, 7), (8, 0)])
def test_empty_chain_is_refused(utils: types.ModuleType, budget: int, depth: int) -> None:
    with pytest.raises(ValueError):
        utils.build_chain_parents(budget, depth)


@pytest.mark.parametrize(
    ("name", "marker", "count"),
    [
        ("speculative/dflash_info.py", "_sample_tree_paths", 2),
        ("speculative/ddtree_utils.py", "def compile_ddtree_retrieve", 1),
        ("model_executor/cuda_graph_runner.py", "is_ddtree()", 1),
        ("layers/attention/triton_backend.py", "speculative_ddtree_budget) + 1", 1),
    ],
)
def test_markers_of_the_field_are_added(name: str, marker: str, count: int) -> None:
    text = "".join(diff.read_text(encoding="utf-8") for diff in DDTREE_DIFFS)
    section = re.search(rf"^\+\+\+ b/sglang/srt/{re.escape(name)}\n(.+?)(?=^diff |\Z)", text, re.M | re.S)
    assert section is not None
    added = [line for line in section[1].splitlines() if line.startswith("+")]
    assert sum(line.count(marker) for line in added) == count
