# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What agents need of memory for a tree of many small files, twice as many as an environment with everything has."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS, FILES = 800, 100
MIB = 1 << 20
LIMIT = 200 * MIB
PATIENCE_S = 400


def test_a_tree_of_many_files_takes_little_memory_at_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / ".collections"))
    from ansible_collections.ddtree.fleet.plugins.module_utils._stream.wire import parse_message, to_runs
    from ansible_collections.ddtree.fleet.tests.unit import agents

    monkeypatch.setattr(agents, "PATIENCE_S", PATIENCE_S)
    src, dest = tmp_path / "src", tmp_path / "dest"
    for folder in range(FOLDERS):
        (src / "lib" / f"a-package-{folder}").mkdir(parents=True)
        for file in range(FILES):
            (src / "lib" / f"a-package-{folder}" / f"a-module-{file}.txt").write_text(f"{folder}/{file}")

    def stream() -> tuple[int, dict[str, int]]:
        with agents.Source() as source, agents.Destination() as target:
            tree = source.scan(src)
            target.open(dest)
            want = agents.need(source, target, tree)["want"]
            group = {"runs": to_runs(want), "partial": [], "sinks": [0], "takers": [1]}
            frames = source.frames("send", "sent", groups=[group], compress="auto", rate=0)
            done = target.take(frames[:-1])
        return len(want), {"source": parse_message(frames[-1])["peak_memory"], "target": done["peak_memory"]}

    try:
        wanted, first = stream()
        assert wanted == FOLDERS * FILES
        (src / "lib" / "a-package-1" / "one-more").write_text("with the release before to compare with")
        wanted, second = stream()
        assert wanted == 1
        for peaks in (first, second):
            assert all(20 * MIB < peak < LIMIT for peak in peaks.values()), (first, second)
    finally:
        agents.forget(tmp_path)
