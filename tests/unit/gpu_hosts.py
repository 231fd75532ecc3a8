# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""This machine with the test fleet's nvidia-smi on its PATH."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

STANDIN = Path(__file__).resolve().parents[1] / "fleet" / "nvidia_smi"


def put_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "bin").mkdir(exist_ok=True)
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")


def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> Path:
    """Put the test fleet's nvidia-smi on the PATH, with the recorded answers of one kind of host; gives their folder."""
    data = tmp_path / "data"
    shutil.copytree(STANDIN / kind, data)
    program = (STANDIN / "nvidia_smi.py").read_text().replace('Path("/etc/nvidia-smi-standin")', f"Path({str(data)!r})")
    put_on_path(tmp_path, monkeypatch, f"#!{sys.executable}\n{program}")
    return data
