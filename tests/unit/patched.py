# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small patched environments to look at, and what a look at them says."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import venv
from pathlib import Path
from typing import Any, Dict, List, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import Baseline
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.declaration import parse_files, parse_rules
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.diffs import parse_diffs
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import find_environment
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.proof import assert_patches
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.verdict import Verdict

FILES = {
    "sglang/__init__.py": "from sglang.version import __version__\n",
    "sglang/version.py": (
        "try:\n    from sglang._version import __version__\nexcept ImportError:\n    __version__ = '0.0.0.dev0'\n"
    ),
    "sglang/_version.py": "version: str\n__version__: str\n__version__ = version = '0.5.11'\n",
    "sglang/srt/spec_info.py": "class Spec:\n    def is_dflash(self):\n        return True\n",
    "sglang/srt/other, and more.py": "x = 1\n",
    "tools/tag.py": "x = 1\n",
}


def recorded(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def git(directory: Path, *arguments: str) -> bytes:
    """The output of a git that knows no configuration but ours."""
    user = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(["git", *user, *arguments], cwd=directory, env=environment, capture_output=True, check=True)
    return done.stdout


class Fake:
    """A real virtual environment with a small distribution named sglang in it."""

    def __init__(self, root: Path, version: str = "0.5.11") -> None:
        venv.create(root, with_pip=False, symlinks=True)
        self.root = root
        (self.site,) = root.glob("lib/python3.*/site-packages")
        self.info = self.site / f"sglang-{version}.dist-info"
        self.info.mkdir()
        (self.info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\n\nVersion: 9\n")
        launcher = b"#!/root/venv/bin/python\nimport sglang\n"
        (root / "bin" / "sglang").write_bytes(launcher)
        self.lines = [f"../../../bin/sglang,{recorded(launcher)},{len(launcher)}"]
        for path, text in FILES.items():
            self.write(path, text)
            quoted = f'"{path}"' if "," in path else path
            self.lines.append(f"{quoted},{recorded(text.encode())},{len(text)}")
        self.lines += [
            f"{self.info.name}/RECORD,,",
            "sglang/__pycache__/version.cpython-312.pyc,,",
            "sglang/srt/,,",
            "",
        ]
        self.save()

    def save(self) -> None:
        (self.info / "RECORD").write_bytes("\r\n".join(self.lines).encode("utf-8", "surrogateescape"))

    def write(self, path: str, text: str) -> None:
        (self.site / path).parent.mkdir(parents=True, exist_ok=True)
        (self.site / path).write_bytes(text.encode())

    def look(
        self,
        files: Optional[List[str]] = None,
        checks: Optional[List[Dict[str, Any]]] = None,
        baseline: Optional[Baseline] = None,
        compile_files: bool = True,
        interpreter: Optional[str] = None,
        diffs: Optional[List[Dict[str, Any]]] = None,
    ) -> Verdict:
        environment = find_environment(str(self.root), None, interpreter)
        declared, rules = parse_files(files or []), parse_rules(checks or [])
        return assert_patches(environment, declared, rules, compile_files, baseline, parse_diffs(diffs or []))


RECORD = Baseline("record", ["sglang"])
SPEC = "sglang/srt/spec_info.py"


def failed(verdict: Verdict) -> List[str]:
    return [check.sentence() for check in verdict.checks if not check.passed]


def one_check(fake: Fake, text: str, **check: Any) -> Any:
    fake.write("sglang/one.py", text)
    return fake.look(checks=[{"file": "sglang/one.py", **check}]).checks[0]
