# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later


# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List

import pytest
from ansible_collections.ddtree.fleet.plugins.plugin_utils import _board
from ansible_collections.ddtree.fleet.plugins.plugin_utils._bundle import bundle
from ansible_collections.ddtree.fleet.tests.unit.agents import listing, releases
from ansible_collections.ddtree.fleet.tests.unit.hosts import (
    DIES_AFTER,
    LOGS_READS,
    MANY_BYTES,
    MIB,
    NO_ZSTD,
    altered,
    below,
    content,
    here,
    hosts,
    recorded,
    release_of,
    request,
    run,
    target,
    verdicts,
)


def test_one_source_feeds_two_targets_and_nothing_the_second_time(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    tree = run(request(src, "/venv"), targets)
    found = verdicts(targets)
    for name in ("t1", "t2"):
        release = release_of(tmp_path, name)
        assert content(release) == content(src)
        assert (found[name]["failed"], found[name]["changed"], found[name]["msg"]) == (False, True, "")
        assert (found[name]["release"], found[name]["digest"]) == (release.name, tree["digest"])
        assert (found[name]["files_sent"], found[name]["bytes_sent"], found[name]["path"]) == (31, MANY_BYTES, "relay")
        assert found[name]["wire_bytes"] > found[name]["bytes_sent"]
    assert (tree["files"], tree["environment"]) == (31, {})
    before = listing(tmp_path)
    for check in (True, False):
        again = hosts(tmp_path, "t1", "t2")
        run(request(src, "/venv", check=check), again)
        for name, verdict in verdicts(again).items():
            assert (verdict["failed"], verdict["changed"], verdict["files_sent"]) == (False, False, 0)
            assert verdict["installed_digest"] == found[name]["installed_digest"] == tree["digest"]
            assert (verdict["path"], verdict["bytes_sent"]) == ("", 0)
    after = listing(tmp_path)
    assert {path for path in after if after[path] != before.get(path)} <= {
        str(tmp_path / name) for name in ("t1", "t2")
    }  # the lease


def test_figures_are_exact(tmp_path: Path, src: Path) -> None:
    (src / "lib" / "twin").write_bytes((src / "lib" / "00").read_bytes())
    targets = [target(recorded("t1", below(tmp_path / "t1"), tmp_path / "sent"))]
    tree = run(request(src, "/venv"), targets)
    verdict = verdicts(targets)["t1"]
    assert (tree["files"], tree["bytes"], tree["entries"]) == (32, MANY_BYTES + MIB // 4, 34)
    assert (tree["hashed"], tree["hashed_bytes"]) == (32, MANY_BYTES + MIB // 4)
    assert (verdict["files_sent"], verdict["bytes_sent"], verdict["bytes_resumed"]) == (31, MANY_BYTES, 0)
    assert verdict["wire_bytes"] == (tmp_path / "sent").stat().st_size - len(bundle())
    assert {how: count for how, count in verdict["reused"].items() if count["files"]} == {
        "sent": {"files": 31, "bytes": MANY_BYTES},
        "repeated": {"files": 1, "bytes": MIB // 4},
    }
    assert verdict["origins"] == {}
    assert set(verdict["seconds"]) == {"compare", "reuse", "receive", "prove", "sync", "commit"}
    assert set(tree["source_seconds"]) == {"scan", "hash", "send"}
    assert verdict["mib_per_s"] == pytest.approx(MANY_BYTES / MIB / verdict["seconds"]["receive"], abs=0.06)
    for memory in (verdict["peak_memory"], tree["source_peak_memory"], tree["relay_peak_memory"]):
        assert 4 * MIB < memory < 1024 * MIB
    assert tree["seconds"] >= verdict["seconds"]["receive"]
    (src / "new").write_bytes(b"new")
    again = [target(recorded("t1", below(tmp_path / "t1"), tmp_path / "sent"))]
    tree = run(request(src, "/venv"), again)
    verdict = verdicts(again)["t1"]
    assert (verdict["files_sent"], verdict["bytes_sent"]) == (1, 3)
    assert verdict["wire_bytes"] == (tmp_path / "sent").stat().st_size - len(bundle())
    first = f"release {targets[0].verdict.release}"
    assert verdict["origins"] == {first: {"files": 32, "bytes": MANY_BYTES + MIB // 4}}
    assert sum(count["files"] for count in verdict["reused"].values()) == 33


def test_check_mode_predicts_and_writes_nothing(tmp_path: Path, src: Path) -> None:
    before = listing(src)
    targets = hosts(tmp_path, "t1")
    run(request(src, "/venv", check=True), targets)
    verdict = verdicts(targets)["t1"]
    assert (verdict["failed"], verdict["changed"], verdict["files_sent"]) == (False, True, 31)
    assert (verdict["path"], verdict["bytes_sent"]) == ("", MANY_BYTES)
    assert listing(src) == before
    assert os.listdir(tmp_path / "t1") == []


CHANGES: Dict[str, Any] = {
    "against": "",
    "added": [],
    "changed": [],
    "removed": [],
    "counts": {"added": 0, "changed": 0, "removed": 0},
    "sizes": {},
}


def test_directories_that_only_one_target_knows_are_listed_once_for_each(tmp_path: Path, src: Path) -> None:
    run(request(src, "/venv"), hosts(tmp_path, "old"))
    (src / "lib" / "00").write_text("new")
    targets = hosts(tmp_path, "old", "fresh")
    run(request(src, "/venv"), targets)
    assert {name: (one["msg"], one["files_sent"]) for name, one in verdicts(targets).items()} == {
        "old": ("", 1),
        "fresh": ("", 31),
    }


def test_targets_that_want_different_files_get_theirs_and_each_file_is_read_once(tmp_path: Path, src: Path) -> None:
    """One lacks everything, one has half of it, one has it all but two, and one more dies in the middle."""
    everything = content(src)
    for name, having in (("half", 15), ("most", 29)):
        for number in range(having, 30):
            (src / "lib" / f"{number:02}").unlink()
        run(request(src, "/venv"), hosts(tmp_path, name))
        for path, data in everything.items():
            (src / path).write_bytes(data)
    (src / "last").write_text("last")
    log = tmp_path / "log"
    dying = target(here("dying", below(tmp_path / "dying", DIES_AFTER.format(blocks=3))))
    targets = [dying, *hosts(tmp_path, "none", "half", "most")]
    run(request(src, "/venv"), targets, here("source", altered(LOGS_READS.format(file=str(log)))))
    found = verdicts(targets)
    assert {name: one["msg"] for name, one in found.items() if one["failed"]} == {
        "dying": "dying: the connection ended before the work was done"
    }
    assert {name: one["files_sent"] for name, one in found.items()} == {"dying": 32, "none": 32, "half": 16, "most": 2}
    for name in ("none", "half", "most"):
        release = tmp_path / name / "venv.releases" / found[name]["release"]
        assert content(release) == content(src)
    assert sorted(log.read_text().split()) == sorted(content(src))
    assert releases(tmp_path / "dying" / "venv") == []
    again = hosts(tmp_path, "dying")
    run(request(src, "/venv"), again)
    assert 0 < verdicts(again)["dying"]["files_sent"] < 32
    assert verdicts(again)["dying"]["reused"]["kept"]["files"] > 0
    assert content(release_of(tmp_path, "dying")) == content(src)


@pytest.mark.parametrize("spoiled", [False, True])
def test_a_large_file_goes_on_where_it_stopped_and_comes_whole_to_the_others(tmp_path: Path, spoiled: bool) -> None:
    src = tmp_path / "src"
    src.mkdir()
    (src / "large").write_bytes(os.urandom(24 * MIB))
    (src / "small").write_bytes(b"small")
    cut_off = [target(here("t1", below(tmp_path / "t1", DIES_AFTER.format(blocks=18))))]
    run(request(src, "/venv"), cut_off)
    assert cut_off[0].verdict.failed is True
    staged = tmp_path / "t1" / "venv.releases" / "staging" / "tree" / "large"
    arrived = staged.stat().st_size
    assert 8 * MIB < arrived < 24 * MIB
    if spoiled:
        with staged.open("r+b") as file:
            file.write(b"spoiled")
    targets = hosts(tmp_path, "t1", "t2")
    run(request(src, "/venv"), targets)
    found = verdicts(targets)
    for name in ("t1", "t2"):
        assert found[name]["msg"] == ""
        assert content(release_of(tmp_path, name)) == content(src)
    resumed = 0 if spoiled else arrived
    assert (found["t1"]["bytes_resumed"], found["t2"]["bytes_resumed"]) == (resumed, 0)
    assert found["t1"]["bytes_sent"] == found["t2"]["bytes_sent"] == 24 * MIB + 5
    spared = found["t2"]["wire_bytes"] - found["t1"]["wire_bytes"]
    assert abs(spared - resumed) < MIB // 8


@pytest.mark.parametrize("compress", ["none", "auto", "zstd"])
def test_one_target_gets_the_same_and_what_it_is_sent_is_counted(tmp_path: Path, large: Path, compress: str) -> None:
    targets = [target(recorded("t1", below(tmp_path / "t1"), tmp_path / "sent"))]
    run(request(large, "/venv", compress=compress), targets)
    verdict = verdicts(targets)["t1"]
    assert (verdict["failed"], verdict["msg"], verdict["path"]) == (False, "", "relay")
    assert content(release_of(tmp_path, "t1")) == content(large)
    assert (verdict["files_sent"], verdict["bytes_sent"]) == (4, 27 * MIB + 22)
    assert verdict["wire_bytes"] == (tmp_path / "sent").stat().st_size - len(bundle())
    assert 24 * MIB < verdict["wire_bytes"] < 26 * MIB


SLOW = """
build = target.Staging.build
def slow(self, plan, prefixes, progress):
    for _ in range(12):
        time.sleep(0.2)
        progress._tell()
    build(self, plan, prefixes, progress)
target.Staging.build = slow
"""


@pytest.mark.slow
def test_a_target_that_copies_for_long_is_waited_for(tmp_path: Path, src: Path) -> None:
    """Building from what is already there takes longer than ``idle``, while more than the pipes hold waits to be sent."""
    targets = hosts(tmp_path, "t1", code=SLOW)
    run(request(src, "/venv", idle=2.0), targets)
    assert verdicts(targets)["t1"]["msg"] == ""
    assert len(releases(tmp_path / "t1" / "venv")) == 1


TALKATIVE = """
add = progress.Progress.add
def talk(self, files, size=0):
    add(self, files, size)
    with self._lock:
        for _ in range(3000):
            self._tell()
progress.Progress.add = talk
"""


def test_progress_of_a_target_never_blocks_its_stream(tmp_path: Path, src: Path) -> None:
    """Its messages are more than the pipe to the relay holds while content is passed on."""
    targets = hosts(tmp_path, "t1", code=TALKATIVE)
    run(request(src, "/venv", idle=4.0), targets)
    assert verdicts(targets)["t1"]["msg"] == ""


def test_what_the_ends_do_is_told_on_the_way(tmp_path: Path, src: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_board, "EVERY_S", 0.0)
    said: List[str] = []
    often = "progress.INTERVAL_S = 0\n"
    source = here("source", altered(often))
    run(request(src, "/venv"), hosts(tmp_path, "t1", "t2", code=often), source, said.append)
    assert any(line.startswith("source hashes: ") for line in said)
    sending = [line for line in said if line.startswith("source -> t1, t2: ")]
    assert "31 of 31 files, 7 of 7 MiB, " in sending[-1]
    assert not [line for line in said if "\n" in line]
    monkeypatch.setattr(_board, "EVERY_S", 60.0)
    quiet: List[str] = []
    run(request(src, "/venv"), hosts(tmp_path, "t3", code=often), source, quiet.append)
    assert quiet == []


@pytest.mark.slow
def test_the_source_keeps_to_the_rate(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    tree = run(request(src, "/venv", rate=5 * MIB, compress="none"), targets)
    assert [one.verdict.msg for one in targets] == ["", ""]
    assert tree["source_seconds"]["send"] >= MANY_BYTES / (5 * MIB) - 0.15
    assert targets[0].verdict.mib_per_s <= 6


@pytest.fixture(name="text")
def text_fixture(tmp_path: Path) -> Path:
    """A tree that compresses well."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(4):
        (text / str(number)).write_bytes(b"".join(b"%d %d\n" % (number, line) for line in range(100_000)))
    return text


@pytest.mark.parametrize("compress", ["auto", "zstd", "none"])
def test_content_is_compressed_as_asked(tmp_path: Path, text: Path, compress: str) -> None:
    targets = hosts(tmp_path, "t1", "t2")
    run(request(text, "/venv", compress=compress), targets)
    for name, verdict in verdicts(targets).items():
        assert (verdict["msg"], verdict["compress"]) == ("", compress)
        assert (verdict["wire_bytes"] < verdict["bytes_sent"] / 2) == (compress != "none")
        assert content(release_of(tmp_path, name)) == content(text)


@pytest.mark.parametrize("without", ["source", "t2"])
def test_nothing_is_compressed_where_one_end_has_no_zstd(tmp_path: Path, text: Path, without: str) -> None:
    targets = [*hosts(tmp_path, "t1"), *hosts(tmp_path, "t2", code=NO_ZSTD if without == "t2" else "")]
    source = here("source", altered(NO_ZSTD if without == "source" else ""))
    run(request(text, "/venv", compress="zstd"), targets, source)
    for name, verdict in verdicts(targets).items():
        assert (verdict["msg"], verdict["compress"]) == ("", "none")
        assert verdict["wire_bytes"] > verdict["bytes_sent"]
        told = [f"{without}: there is no zstd, so content goes uncompressed; install libzstd"]
        assert verdict["notices"] == (told if without in ("source", name) else [])
        assert content(release_of(tmp_path, name)) == content(text)


READS_SLOWLY = """
take = receiver.Receiver._take
def slow(self, data, zeros):
    time.sleep(0.01)
    take(self, data, zeros)
receiver.Receiver._take = slow
"""


@pytest.mark.slow
def test_the_relay_holds_little_of_what_a_slow_target_still_has_to_take(tmp_path: Path) -> None:
    src = tmp_path / "src"
    src.mkdir()
    noise = os.urandom(MIB)
    with (src / "large").open("wb") as file:
        for _ in range(128):
            file.write(noise)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    targets = hosts(tmp_path, "t1", code=READS_SLOWLY)
    tree = run(request(src, "/venv", compress="none"), targets)
    assert targets[0].verdict.msg == ""
    assert 0 <= tree["relay_own_memory"] < 64 * MIB


def test_seeds_that_a_target_lacks_are_told(tmp_path: Path, src: Path) -> None:
    targets = hosts(tmp_path, "t1")
    run(request(src, "/venv", seeds=[str(src), "/none"]), targets)
    verdict = verdicts(targets)["t1"]
    assert (verdict["notices"], verdict["files_sent"]) == (["t1: there is no seed /none"], 0)
    assert verdict["origins"] == {f"seed {src}": {"files": 31, "bytes": MANY_BYTES}}


def test_special_modes_are_told_and_kept_when_asked(tmp_path: Path, src: Path) -> None:
    (src / "lib" / "00").chmod(0o4755)
    for special, mode in ((False, 0o755), (True, 0o4755)):
        name = f"special-{special}"
        tree = run(request(src, "/venv", special=special), hosts(tmp_path, name))
        assert tree["special"] == ["lib/00"]
        assert (release_of(tmp_path, name) / "lib" / "00").stat().st_mode & 0o7777 == mode
