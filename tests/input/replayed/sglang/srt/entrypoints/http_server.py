# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP server: the replay server, whose server_info echoes this server's own arguments."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, List

from sglang import replay_server
from sglang.bend import Bend

RECORDED = Path(replay_server.__file__).with_name("recorded")


def launch_server(server_args: argparse.Namespace, bend: Bend) -> int:
    """Serve until SIGTERM; gives the exit status of a server that ends before."""
    echoed = {name: value for name, value in vars(server_args).items() if name not in ("api_key", "config")}

    class Replay(replay_server.Replay):
        def server_info(self) -> Any:
            return {**super().server_info(), **echoed}

    replay_server.Replay = Replay
    signal.signal(signal.SIGTERM, signal.SIG_IGN if bend.ignore_sigterm else _ending_after(bend.stop_seconds))
    sys.argv[1:] = _replay_arguments(server_args, bend)
    return int(replay_server.main())


def _replay_arguments(server_args: argparse.Namespace, bend: Bend) -> List[str]:
    recorded = RECORDED / ("dflash_accepted" if server_args.speculative_algorithm else "plain")
    key = [f"--api-key={server_args.api_key}"] if server_args.api_key else []
    return [str(recorded), f"--host={server_args.host}", f"--port={server_args.port}", *key, *bend.replay]


def _ending_after(seconds: float) -> Any:
    def end(_number: int, _frame: Any) -> None:
        time.sleep(seconds)
        os._exit(0)

    return end
