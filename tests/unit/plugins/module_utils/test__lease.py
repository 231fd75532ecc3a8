# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._lease import Lease, LeaseError


@pytest.fixture(name="lease")
def lease_fixture(tmp_path: Path) -> Lease:
    return Lease(str(tmp_path / "dest"))


def change(lease: Lease, **fields: object) -> None:
    held = json.loads(Path(lease.path).read_text())
    Path(lease.path).write_text(json.dumps({**held, **fields}))


def test_one_run_holds_it_renews_it_and_gives_it_back(lease: Lease) -> None:
    assert lease.acquire("run", "me") is True
    since = lease.holder()["since"]
    assert lease.acquire("run", "me", minutes=90) is False
    assert lease.holder()["since"] == since
    assert round(lease.holder()["until"] - since) in range(5399, 5410)
    lease.check("run")
    assert lease.release("run") is True
    assert lease.release("run") is False
    assert not os.path.exists(lease.path)


def test_another_run_is_told_who_holds_it_since_when_and_what_to_do(lease: Lease) -> None:
    lease.acquire("one", "anna@control")
    for refused in (lambda: lease.acquire("two", "me"), lambda: lease.check("two")):
        with pytest.raises(LeaseError) as caught:
            refused()
        assert f"{lease.dest} is being deployed to by anna@control since 20" in str(caught.value)
        assert "UTC" in str(caught.value)
        assert "lock_take_over" in str(caught.value)
    assert lease.release("two") is False
    assert lease.holder()["run"] == "one"


def test_it_can_be_taken_over_knowingly(lease: Lease) -> None:
    lease.acquire("one", "anna")
    lease.check("two", take_over=True)
    assert lease.acquire("two", "me", take_over=True) is True
    assert lease.holder()["who"] == "me"


@pytest.mark.parametrize("fields", [{"until": 0}, {"boot": "another boot"}])
def test_one_that_ran_out_or_is_of_an_earlier_boot_does_not_count(lease: Lease, fields: dict[str, object]) -> None:
    lease.acquire("one", "anna")
    change(lease, **fields)
    assert lease.holder() == {}
    lease.check("two")
    assert lease.acquire("two", "me") is True


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"until": "soon", "boot": ""}'])
def test_a_damaged_file_is_no_lease(lease: Lease, text: str) -> None:
    Path(lease.path).write_text(text)
    assert lease.holder() == {}
    assert lease.acquire("run", "me") is True
    assert lease.holder()["run"] == "run"


def test_looking_creates_nothing(lease: Lease, tmp_path: Path) -> None:
    lease.check("run")
    assert lease.release("run") is False
    assert os.listdir(tmp_path) == []


def test_of_many_that_come_at_once_one_wins(lease: Lease) -> None:
    program = """
import sys
from ansible_collections.ddtree.fleet.plugins.module_utils._lease import Lease, LeaseError
lease, run, wins = Lease(sys.argv[1]), sys.argv[2], 0
for _ in range(200):
    try:
        lease.acquire(run, run)
    except LeaseError:
        continue
    assert lease.holder()["run"] == run
    open(sys.argv[1] + ".inside", "x").close()
    import os
    os.unlink(sys.argv[1] + ".inside")
    wins += 1
    assert lease.release(run)
print(wins)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, lease.dest, name],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name in ("one", "two", "three")
    ]
    results = [process.communicate(timeout=30) for process in running]
    assert [stderr for _, stderr in results] == [b"", b"", b""]
    assert sum(int(stdout) for stdout, _ in results) > 0
    assert not os.path.exists(lease.path)


def test_the_lease_of_a_run_that_is_known_to_be_dead_is_taken_but_no_other(lease: Lease) -> None:
    lease.acquire("dead", "ada@one")
    assert lease.acquire("second", "bob@two", instead_of="dead")
    with pytest.raises(LeaseError, match="bob@two"):
        lease.acquire("third", "eve@three", instead_of="dead")
    with pytest.raises(LeaseError, match="bob@two"):
        lease.check("third", instead_of="dead")


def test_renewing_never_shortens_a_lease(lease: Lease) -> None:
    lease.acquire("run", "ada@one", minutes=90)
    until = lease.holder()["until"]
    assert not lease.acquire("run", "ada@one", minutes=1)
    assert lease.holder()["until"] == until


def test_a_process_that_outlives_its_connection_does_not_give_back_what_the_next_one_took_on(lease: Lease) -> None:
    assert lease.acquire("run", "me", holder="first") is True
    assert lease.acquire("run", "me", holder="second") is True
    assert lease.release("run", "first") is False
    assert lease.holder()["run"] == "run"
    assert lease.release("run", "second") is True
    assert not os.path.exists(lease.path)


def test_what_a_run_holds_is_not_given_back_by_its_processes(lease: Lease) -> None:
    assert lease.acquire("run", "me") is True
    assert lease.acquire("run", "me", holder="process") is False
    assert lease.holder()["holder"] == ""


def test_a_process_within_another_leaves_the_lease_to_that_one(lease: Lease) -> None:
    assert lease.acquire("run", "me", holder="outer") is True
    assert lease.acquire("run", "me") is False
    assert lease.release("run", "outer") is True


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_named_and_loses_no_lease(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=True)
    try:
        held = Lease(str(tmp_path / "held"))
        held.acquire("run", "me")
        with contextlib.suppress(OSError), open(tmp_path / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(512))
        assert held.acquire("run", "me") is False
        assert held.holder()["run"] == "run"
        fresh = Lease(str(tmp_path / "fresh"))
        with pytest.raises(LeaseError, match=re.escape(f"{fresh.path} cannot be written: No space left on device")):
            fresh.acquire("run", "me")
        assert not os.path.exists(fresh.path)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_what_a_process_held_that_was_killed_is_free(lease: Lease) -> None:
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from ansible_collections.ddtree.fleet.plugins.module_utils._lease import Lease, this_process\n"
        "print(Lease(sys.argv[2]).acquire('run', 'anna', holder=this_process()), flush=True); time.sleep(60)"
    )
    root = str(Path(__file__).parents[4] / ".collections")
    with subprocess.Popen([sys.executable, "-c", program, root, lease.dest], stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout and held.stdout.readline() == "True\n"
        with pytest.raises(LeaseError, match="is being deployed to by anna"):
            lease.acquire("other", "me")
        held.kill()
    assert lease.acquire("other", "me") is True
