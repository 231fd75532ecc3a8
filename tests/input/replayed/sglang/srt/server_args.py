# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line: the flags that profiles and users set, parsed as strictly as the real ones."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Tuple

Option = Tuple[str, Dict[str, Any]]

STRING: Dict[str, Any] = {"type": str}
NUMBER: Dict[str, Any] = {"type": int}
SWITCH: Dict[str, Any] = {"action": "store_true"}

OPTIONS: Tuple[Option, ...] = (
    ("--model-path", {"type": str, "required": True}),
    ("--host", {"type": str, "default": "127.0.0.1"}),
    ("--port", {"type": int, "default": 30000}),
    ("--api-key", STRING),
    ("--served-model-name", STRING),
    ("--device", STRING),
    ("--dtype", {"choices": ["auto", "bfloat16", "float16", "float32"], "default": "auto"}),
    ("--tp-size", {"type": int, "default": 1}),
    ("--ep-size", {"type": int, "default": 1}),
    ("--dp-size", {"type": int, "default": 1}),
    ("--context-length", NUMBER),
    ("--mem-fraction-static", {"type": float}),
    ("--max-total-tokens", NUMBER),
    ("--max-running-requests", NUMBER),
    ("--attention-backend", {"choices": ["triton", "flashinfer", "fa3", "torch_native", "trtllm_mla"]}),
    ("--grammar-backend", {"choices": ["xgrammar", "outlines", "llguidance", "none"]}),
    ("--cuda-graph-max-bs", NUMBER),
    ("--disable-cuda-graph", SWITCH),
    ("--disable-overlap-schedule", SWITCH),
    ("--disable-radix-cache", SWITCH),
    ("--enable-metrics", SWITCH),
    ("--enable-nccl-nvls", SWITCH),
    ("--trust-remote-code", SWITCH),
    ("--speculative-algorithm", {"choices": ["DFLASH", "DDTREE", "EAGLE", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE"]}),
    ("--speculative-draft-model-path", STRING),
    ("--speculative-draft-attention-backend", {"choices": ["triton", "flashinfer", "fa3", "torch_native"]}),
    ("--speculative-dflash-draft-window-size", NUMBER),
    ("--speculative-ddtree-budget", NUMBER),
    ("--speculative-ddtree-topk-cap", NUMBER),
)


class ServerArgs:
    """Only the parser is needed of it."""

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        for flag, settings in OPTIONS:
            parser.add_argument(flag, **settings)
        parser.add_argument("--config", type=Path, help="further arguments, a line each: name, colon, JSON value")


class _Parser(argparse.ArgumentParser):
    """Never repeats the value of an argument, which may be a key."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(f"launch_server.py: error: {message}")


def prepare_server_args(arguments: List[str]) -> argparse.Namespace:
    """Parse a command line; what it says wins over its --config file, as in the real program."""
    parser = _Parser(prog="launch_server.py", allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    config = next((arguments[place + 1] for place, word in enumerate(arguments[:-1]) if word == "--config"), None)
    return parser.parse_args((_from_config(Path(config)) if config else []) + arguments)


def _from_config(path: Path) -> List[str]:
    words = []
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _colon, value = line.partition(":")
        words.append(f"--{name.strip()}={json.loads(value)}")
    return words
