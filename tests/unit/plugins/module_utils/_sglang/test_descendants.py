# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import subprocess
import sys

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.descendants import (
    MemoryWatch,
    descendants,
    ending_all_that_start,
)

HOLDS = """
import os, sys
if not os.fork():
    os.setsid()
    kept = b"x" * (64 << 20)
    print(os.getpid(), flush=True)
    sys.stdin.read()
os.wait()
"""


def test_what_a_child_of_a_child_holds_counts_wherever_it_went() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        holder = int(process.stdout.readline())
        assert {process.pid, holder} <= set(descendants(os.getpid()))
        watch, unlimited = MemoryWatch(64), MemoryWatch(0)
        assert (watch(), unlimited()) == (False, True)
        assert 64 < watch.seen_mib < 1024
        process.stdin.close()
    assert holder not in descendants(os.getpid())


def test_a_process_that_has_left_its_group_and_its_parent_ends_too() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as older:
        with ending_all_that_start():
            program = ["setsid", "--fork", "sh", "-c", "echo $$; exec sleep 60 >/dev/null"]
            holder = int(subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True).stdout)
            assert os.path.exists(f"/proc/{holder}")
        assert not os.path.exists(f"/proc/{holder}")
        assert older.poll() is None
        older.kill()
