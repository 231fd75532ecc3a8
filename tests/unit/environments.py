# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real environments for tests: made by venv, filled by pip from wheels that are made here, on a base interpreter of their own."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Dict, List, Union

BASE_PYTHON = Path(os.path.realpath(sys.executable))
SHORT = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SYSTEM_PYTHON = Path(os.path.realpath("/usr/bin/python3"))

# As setuptools writes them for `pip install -e`, but for the parts that namespace packages need.
EDITABLE_PTH = "import __editable___tool_1_0_finder; __editable___tool_1_0_finder.install()"
EDITABLE_FINDER = """from __future__ import annotations
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

MAPPING: dict[str, str] = {{'tool': {package!r}}}
NAMESPACES: dict[str, list[str]] = {{}}


class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname: str, _path=None, _target=None) -> ModuleSpec | None:
        if fullname in MAPPING:
            return spec_from_file_location(fullname, Path(MAPPING[fullname], "__init__.py"))
        return None


def install():
    sys.meta_path.append(_EditableFinder)
"""


def recorded(content: Union[str, bytes], algorithm: str = "sha256") -> str:
    """A hash as RECORD holds it."""
    data = content.encode() if isinstance(content, str) else content
    return base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()


def wheel(folder: Path, name: str, files: Dict[str, str]) -> Path:
    """A wheel with a module ``name`` whose ``main`` is also a console script; ``files`` are added, below ``<name>-1.0.data`` too."""
    content = {
        f"{name}.py": "import sys\n\n\ndef main():\n    print(sys.prefix)\n    print(__file__)\n",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-1.0.dist-info/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
        **files,
    }
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in content.items():
            info = zipfile.ZipInfo(member)
            info.external_attr = (0o100755 if "/scripts/" in member else 0o100644) << 16
            archive.writestr(info, text)
        record = "".join(f"{member},sha256={recorded(text)},{len(text)}\n" for member, text in content.items())
        record += f"{name}-1.0.dist-info/RECORD,,\n"
        archive.writestr(f"{name}-1.0.dist-info/RECORD", record)
    return path


def build(at: Path, *options: str, python: Path = BASE_PYTHON) -> Path:
    """An environment without pip, made by venv; gives its site-packages."""
    subprocess.run([python, "-m", "venv", "--without-pip", *options, at], check=True)
    return at / "lib" / SHORT / "site-packages"


def install(environment: Path, *wheels: Path) -> None:
    """Install wheels as pip does, which writes the launchers and RECORD."""
    command = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet"]
    options = ["--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*command, *options, *wheels], check=True)


def add_editable(environment: Path) -> None:
    """A package below the environment's own ``src`` that is found through a finder, as an editable installation is."""
    site, package = environment / "lib" / SHORT / "site-packages", environment / "src" / "tool"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (site / "__editable__.tool-1.0.pth").write_text(EDITABLE_PTH)
    (site / "__editable___tool_1_0_finder.py").write_text(EDITABLE_FINDER.format(package=str(package)))


def managed_python(folder: Path) -> Path:
    """A base interpreter in a directory of its own, as uv keeps them, with the alias that uv makes; gives the alias.

    It is the distribution's, which needs no shared library of its own. The program is a copy; the modules are linked, since
    only their place counts here.
    """
    program = "import platform, sysconfig; print(platform.python_version(), sysconfig.get_path('stdlib'), sep='\\n')"
    version, modules = output(SYSTEM_PYTHON, "-c", program)
    prefix = folder / f"cpython-{version}-linux-x86_64-gnu"
    library = prefix / "lib" / SYSTEM_PYTHON.name
    (prefix / "bin").mkdir(parents=True)
    library.mkdir(parents=True)
    shutil.copy2(SYSTEM_PYTHON, prefix / "bin")
    for item in Path(modules).iterdir():
        if item.name not in ("site-packages", "dist-packages", "__pycache__", "test"):
            (library / item.name).symlink_to(item)
    alias = folder / f"cpython-{version.rpartition('.')[0]}-linux-x86_64-gnu"
    alias.symlink_to(prefix.name)
    return alias


def output(*command: object) -> List[str]:
    """The lines that a program prints, with nothing of this environment in its own."""
    clean = {"PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [str(word) for word in command], check=True, capture_output=True, text=True, env=clean
    ).stdout.splitlines()


def files_naming(root: Path, text: str) -> List[str]:
    """Files and links below ``root`` that name ``text``; bytecode does not count, since it is compiled anew."""
    found = []
    for folder, names, files in os.walk(root):
        for name in names + files:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                says = os.fsencode(os.readlink(path))
            elif name in files and "__pycache__" not in folder:
                says = Path(path).read_bytes()
            else:
                continue
            if os.fsencode(text) in says:
                found.append(os.path.relpath(path, root))
    return sorted(found)
