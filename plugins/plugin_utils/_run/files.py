# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where reports are put: one page and one JSON a run, each complete or not there at all, and links to the latest."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from pathlib import Path

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.document import Checks, document
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import Run
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.page import page

_LATEST = "latest"


def write(run: Run, folder: Path) -> Path:
    """Write both into ``folder``, which is made where it is missing, and give the path of the page. Raises OSError.

    They name hosts and say why things failed, so only their owner may read them.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(run.began))}-{_safe(run.id)}"
    checks = Checks()
    _put(folder / f"{name}.json", json.dumps(document(run, checks), ensure_ascii=False, separators=(",", ":")) + "\n")
    _put(folder / f"{name}.html", page(run, checks, f"{name}.json"))
    for suffix in (".json", ".html"):
        _link(folder / f"{_LATEST}{suffix}", f"{name}{suffix}")
    return folder / f"{name}.html"


def _put(path: Path, content: str) -> None:
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=path.suffix, dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _link(path: Path, target: str) -> None:
    with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as beside:
        link = Path(beside) / path.name
        link.symlink_to(target)
        os.replace(link, path)


def _safe(name: str) -> str:
    """The end of a run's id, which is its process, as part of a file name."""
    return re.sub("[^A-Za-z0-9._-]+", "-", name.rpartition("/")[2]).strip("-.")[:80] or "run"
