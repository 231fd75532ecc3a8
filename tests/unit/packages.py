# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small environments with packages in them, wheels of those packages, and what a comparison with a baseline says."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.comparison import check_baseline, compare
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.installed import Installed
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Baseline
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import find_environment
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.verdict import Verdict
from ansible_collections.ddtree.fleet.tests.unit.patched import recorded

LAUNCHER = "#!/venv/bin/python\nimport pkg\n"
FILES = {"pkg/__init__.py": "__version__ = '1.0'\n", "pkg/a.py": "a = 1\n", "pkg/sub/b.py": "b = 1\n"}


class Packages:
    """An environment in ``root`` that distributions are installed into."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.site = root / "lib" / "python3.12" / "site-packages"
        self.site.mkdir(parents=True)
        (root / "bin").mkdir()

    def write(self, path: str, text: str) -> Path:
        full = Path(self.site, path).resolve()
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(text.encode("utf-8", "surrogateescape"))
        return full

    def install(self, name: str = "pkg", version: str = "1.0", files: Mapping[str, str] = FILES) -> Path:
        """Gives the dist-info directory."""
        info = self.site / f"{name}-{version}.dist-info"
        rows = []
        for path, text in {**files, **metadata(name, version)}.items():
            self.write(path, text)
            rows.append([path, recorded(text.encode()), str(len(text.encode()))])
        self.record(info, [*rows, [f"{info.name}/RECORD", "", ""]])
        return info

    def record(self, info: Path, rows: Sequence[Sequence[str]]) -> None:
        info.mkdir(exist_ok=True)
        (info / "RECORD").write_bytes(csv_text(rows).encode("utf-8", "surrogateescape"))

    def compare(self, kind: str, distribution: Any = "pkg", files: Sequence[str] = (), **more: Any) -> Verdict:
        names = [distribution] if isinstance(distribution, str) else distribution
        more = {key: str(value) if isinstance(value, Path) else value for key, value in more.items()}
        baseline, verdict = Baseline(kind, names, **more), Verdict()
        check_baseline(baseline)
        compare(find_environment(str(self.root)), baseline, list(files), verdict)
        return verdict

    def installed(self) -> Installed:
        return Installed(str(self.root), str(self.site))


def metadata(name: str, version: str) -> Dict[str, str]:
    info = f"{name}-{version}.dist-info"
    return {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }


def csv_text(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def wheel(
    folder: Path,
    files: Mapping[str, str] = FILES,
    name: str = "pkg",
    version: str = "1.0",
    tags: str = "py3-none-any",
    **more: str,
) -> Path:
    """A wheel that installers take; ``more`` replaces what is in dist-info by its last name."""
    folder.mkdir(exist_ok=True)
    members = {**files, **metadata(name, version)}
    info = f"{name}-{version}.dist-info"
    members.update({f"{info}/{key}": text for key, text in more.items()})
    rows = [[path, recorded(text.encode()), str(len(text.encode()))] for path, text in members.items()]
    members[f"{info}/RECORD"] = csv_text([*rows, [f"{info}/RECORD", "", ""]])
    path = folder / f"{name}-{version}-{tags}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return path


def found(verdict: Verdict, *names: str) -> Dict[str, List[str]]:
    """The lists of an inventory that are not empty, but for what is always there."""
    assert verdict.inventory is not None, [check.sentence() for check in verdict.checks]
    names = names or ("modified", "missing", "added", "backups", "unmodified")
    return {name: verdict.inventory[name] for name in names if verdict.inventory[name]}


def outcomes(verdict: Verdict) -> Dict[str, bool]:
    return {check.name: check.passed for check in verdict.checks}
