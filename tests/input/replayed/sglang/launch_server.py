# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m sglang.launch_server``: the flags of the real one, answered by the replay server."""

from __future__ import annotations

import mmap
import sys
from typing import List

from sglang import bend
from sglang.srt.entrypoints.http_server import launch_server
from sglang.srt.managers import scheduler
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative import dflash_worker


def main(arguments: List[str]) -> int:
    server_args = prepare_server_args(arguments)
    chosen = bend.read()
    if server_args.speculative_algorithm:
        print(dflash_worker.started(server_args), flush=True)
    # As a real server's libraries do, a mapped file tells from which release the process serves.
    with open(bend.PATH, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        if chosen.gpu_seconds is not None:
            scheduler.start(chosen)
        return launch_server(server_args, chosen)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
