# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The distributions of a site-packages directory: what each lists, which directories are its own, and its version."""

from __future__ import annotations

import ast
import glob
import json
import os
import posixpath
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple
from urllib.parse import unquote, urlsplit

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import BaselineError, Expected, Territory
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.record import parse_record
from ansible_collections.ddtree.fleet.plugins.module_utils._files import read_beginning, some

# Where a package says its own version, the generated file before those that may import from it.
VERSION_FILES = ("_version.py", "version.py", "__init__.py")
# What installers write into dist-info, each in its own way.
INSTALLER_FILES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
SMALL, LARGE = 1 << 20, 64 << 20
ANOTHER = "compare with kind wheel or snapshot, or install it from a wheel"


@dataclass(frozen=True)
class Distribution:
    """One installed distribution. ``files`` is what it lists by path relative to site-packages.

    ``outside`` is what it lists out of the environment, ``problem`` says why all that is no baseline. ``packages`` are its
    own top-level directories.
    """

    name: str
    dist_info: str
    version: str
    files: Dict[str, Expected] = field(default_factory=dict)
    packages: Sequence[str] = ()
    problem: Optional[BaselineError] = None
    editable: bool = False
    outside: Sequence[str] = ()


def normalized(name: str) -> str:
    """A distribution's name as all its spellings compare."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_compiled(path: str) -> bool:
    """Whether it is in a cache of compiled files; those do not count, whatever a RECORD says of them."""
    return "__pycache__" in path.split("/")


def is_installers(path: str) -> bool:
    """Whether a file of a dist-info directory differs between two installs of one wheel; vendored ones are content."""
    directory, _slash, name = path.partition("/")
    return directory.endswith(".dist-info") and name in INSTALLER_FILES


class Installed:
    """What is installed in ``site``, in an environment at ``root``. Raises OSError when ``site`` cannot be read."""

    def __init__(self, root: str, site: str) -> None:
        self.root, self.site = os.path.realpath(root), os.path.realpath(site)
        self.names = sorted(os.listdir(self.site))

    @cached_property
    def distributions(self) -> List[Distribution]:
        found = [self._read(name) for name in self.names if re.match(r"[A-Za-z0-9].*\.dist-info$", name)]
        known = {normalized(one.name) for one in found}
        legacy = [self._read_legacy(name) for name in self.names if name.endswith((".egg-info", ".egg-link", ".egg"))]
        return found + [one for one in legacy if normalized(one.name) not in known]

    def find(self, name: str, listed: bool = True) -> Distribution:
        """The one distribution of that name. Unless it must be ``listed``, a package directory of that name is enough."""
        found = [one for one in self.distributions if normalized(one.name) == normalized(name)]
        if len(found) > 1:
            raise BaselineError(
                some([one.dist_info for one in found]),
                "remove those that are not the installed one; which counts cannot be told",
            )
        if found:
            if found[0].problem and (listed or found[0].editable):
                raise found[0].problem
            return found[0]
        packages = [one for one in self.names if normalized(one) == normalized(name) and self._is_directory(one)]
        if packages and not listed:
            return Distribution(name, "", "", packages=packages)
        raise self._not_there(name, packages)

    def _not_there(self, name: str, packages: Sequence[str]) -> BaselineError:
        wanted = name.lower().replace("-", "_") + "/"
        owners = [
            one.dist_info for one in self.distributions if any(path.lower().startswith(wanted) for path in one.files)
        ]
        if owners:
            return BaselineError(
                f"no dist-info directory of that name; {wanted} belongs to {some(owners)}",
                "it was renamed: name the distribution that is installed now",
            )
        conda = glob.glob(os.path.join(glob.escape(self.root), "conda-meta", f"{glob.escape(name)}-[0-9]*.json"))
        if conda:
            return BaselineError(
                f"no dist-info directory, but conda-meta/{os.path.basename(conda[0])}",
                f"conda installed it without a RECORD; {ANOTHER}",
            )
        if packages:
            return BaselineError(
                f"no dist-info directory, only {packages[0]}/", f"it was copied there and has no RECORD; {ANOTHER}"
            )
        return BaselineError(
            "no dist-info directory",
            f"{name} is not installed there by pip or uv, so there is no RECORD to compare with",
        )

    @cached_property
    def listed(self) -> Set[str]:
        """All that any distribution lists."""
        return {path for one in self.distributions for path in one.files}

    @cached_property
    def unlisted(self) -> Set[str]:
        """The top-level directories of distributions that do not say what they have."""
        return {path for one in self.distributions if not one.files for path in (one.dist_info, *one.packages)}

    def territory(self, distribution: Distribution, more: Iterable[str] = ()) -> Territory:
        """Directories in which it (or what ``more`` lists) has files and nobody else, or has the ``__init__.py``."""
        files = {*distribution.files, *more}
        others = {path for one in self.distributions if one.dist_info != distribution.dist_info for path in one.files}
        foreign = _directories(others)
        own = {
            directory
            for directory in _directories(files) | set(distribution.packages)
            if (directory not in foreign or f"{directory}/__init__.py" in files) and directory != distribution.dist_info
        }
        return Territory(frozenset(own), frozenset(foreign - own), frozenset(others - distribution.files.keys()))

    def own_version(self, distribution: Distribution) -> Optional[str]:
        """The ``__version__`` that the package's own files state as a plain text, read without importing; ``None`` if none does."""
        same_name = normalized(distribution.name)
        for package in sorted(distribution.packages, key=lambda package: normalized(package) != same_name):
            for name in VERSION_FILES:
                try:
                    source = read_beginning(os.path.join(self.site, package, name), SMALL)
                except OSError:
                    continue
                stated = _assigned_text(source, "__version__")
                if stated:
                    return stated
        return None

    def relative(self, path: str) -> Optional[str]:
        """A listed path relative to site-packages; ``None`` where it leads out of the environment."""
        full = os.path.normpath(os.path.join(self.site, path))
        if not any(full.startswith(top.rstrip("/") + "/") for top in (self.site, self.root)):
            return None
        return os.path.relpath(full, self.site) if path.startswith("/") else path

    def _is_directory(self, name: str) -> bool:
        return os.path.isdir(os.path.join(self.site, name))

    def _read(self, dist_info: str) -> Distribution:
        name, version = self._metadata(dist_info)
        try:
            record = read_beginning(os.path.join(self.site, dist_info, "RECORD"), LARGE + 1)
            if len(record) > LARGE:
                raise ValueError("is larger than 64 MiB")
            files = parse_record(record.decode("utf-8", "surrogateescape"))
        except FileNotFoundError:
            return self._unlisted(name, dist_info, version, self._without_record(dist_info))
        except OSError as error:
            problem = BaselineError(f"{dist_info}/RECORD: {error.strerror}", "read it as a user that may")
            return self._unlisted(name, dist_info, version, problem)
        except ValueError as error:
            problem = BaselineError(
                f"{dist_info}/RECORD {error}", "reinstall the distribution, or compare with another baseline"
            )
            return self._unlisted(name, dist_info, version, problem)
        inside, outside = {}, []
        for path, expected in files.items():
            relative = self.relative(path)
            if relative is None:
                outside.append(path)
            else:
                inside[relative] = expected
        packages = sorted(
            path[: -len("/__init__.py")] for path in inside if path.endswith("/__init__.py") and path.count("/") == 1
        )
        source = self._editable_source(dist_info, inside, packages)
        if source is None:
            return Distribution(name, dist_info, version, inside, packages, outside=outside)
        problem = BaselineError(
            f"{dist_info} of an editable install{source}", "its files are elsewhere; install the wheel"
        )
        return Distribution(name, dist_info, version, inside, packages, problem, editable=True)

    def _unlisted(self, name: str, dist_info: str, version: str, problem: BaselineError) -> Distribution:
        """A distribution that does not say what it has; its packages are those that top_level.txt or its name says."""
        try:
            text = read_beginning(os.path.join(self.site, dist_info, "top_level.txt"), SMALL).decode("utf-8", "replace")
        except OSError:
            text = name
        wanted = {normalized(line) for line in text.splitlines()}
        packages = [one for one in self.names if normalized(one) in wanted and self._is_directory(one)]
        return Distribution(name, dist_info, version, packages=packages, problem=problem)

    def _metadata(self, dist_info: str) -> Tuple[str, str]:
        """Name and version as METADATA says them, else as the directory's name does."""
        name, _dash, version = dist_info[: -len(".dist-info")].rpartition("-")
        name, version = (name, version) if name else (version, "")
        try:
            lines = read_beginning(os.path.join(self.site, dist_info, "METADATA"), SMALL).decode("utf-8", "replace")
        except OSError:
            return name, version
        header: Dict[str, str] = {}
        for line in lines.splitlines():
            if not line.strip():
                break
            key, _colon, value = line.partition(":")
            header.setdefault(key.lower(), value.strip())
        return header.get("name") or name, header.get("version") or version

    def _without_record(self, dist_info: str) -> BaselineError:
        try:
            installer = read_beginning(os.path.join(self.site, dist_info, "INSTALLER"), 100).decode("utf-8", "replace")
        except OSError:
            installer = ""
        by = (
            f"{installer.strip()} installed it without one"
            if installer.strip()
            else "it was not installed from a wheel"
        )
        return BaselineError(f"{dist_info} without a RECORD", f"{by}; {ANOTHER}")

    def _editable_source(self, dist_info: str, files: Iterable[str], packages: Sequence[str]) -> Optional[str]:
        """Where an editable install leads to, as the end of a sentence; ``None`` for one that is not editable."""
        try:
            origin = json.loads(read_beginning(os.path.join(self.site, dist_info, "direct_url.json"), SMALL))
            if origin.get("dir_info", {}).get("editable") is True:
                return " of " + unquote(urlsplit(str(origin.get("url", ""))).path)
        except (OSError, ValueError, AttributeError, RecursionError):
            pass
        top = [path for path in files if "/" not in path]
        finder = any(path.startswith("__editable__") for path in top)
        only_path = (
            not packages
            and not any(path.endswith((".py", ".so")) for path in files)
            and any(path.endswith(".pth") and self._leads_away(path) for path in top)
        )
        return "" if finder or only_path else None

    def _leads_away(self, path_file: str) -> bool:
        """Whether a .pth file adds a directory, not only runs code."""
        try:
            lines = read_beginning(os.path.join(self.site, path_file), SMALL).splitlines()
        except OSError:
            return False
        return any(os.path.isabs(line.strip()) for line in lines)

    def _read_legacy(self, item: str) -> Distribution:
        stem = item.rpartition(".")[0]
        name, _dash, rest = stem.partition("-")
        version = re.sub(r"-py[0-9.]+.*$", "", rest)
        if item.endswith(".egg-link"):
            return Distribution(
                name,
                item,
                version,
                problem=BaselineError(f"{item} of an editable install", "its files are elsewhere; install the wheel"),
                editable=True,
            )
        files: Dict[str, Expected] = {}
        try:
            lines = read_beginning(os.path.join(self.site, item, "installed-files.txt"), LARGE).decode(
                "utf-8", "surrogateescape"
            )
            for line in lines.splitlines():
                relative = self.relative(posixpath.normpath(posixpath.join(item, line))) if line else None
                if relative is not None:
                    files[relative] = Expected()
            files[f"{item}/installed-files.txt"] = Expected()
        except OSError:
            pass
        what = "whose installed-files.txt has no hashes" if files else "which lists no files"
        problem = BaselineError(f"{item}, {what}", f"setuptools installed it without a wheel; {ANOTHER}")
        if not files:
            return self._unlisted(name, item, version, problem)
        packages = sorted({path.partition("/")[0] for path in files if path.endswith("/__init__.py")})
        return Distribution(name, item, version, files, packages, problem)


def _directories(paths: Iterable[str]) -> Set[str]:
    """Every directory of paths inside site-packages."""
    found: Set[str] = set()
    for path in paths:
        if path.startswith("../"):
            continue
        directory = posixpath.dirname(path)
        while directory and directory not in found:
            found.add(directory)
            directory = posixpath.dirname(directory)
    return found


def _assigned_text(source: bytes, name: str) -> Optional[str]:
    """The text that a module's top level assigns to ``name``; assignments inside try or if may be fallbacks and do not count."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found = None
    for statement in body:
        targets: Sequence[ast.expr] = ()
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        value = getattr(statement, "value", None)
        stated = value.value if isinstance(value, ast.Constant) else None
        if isinstance(stated, str) and any(isinstance(one, ast.Name) and one.id == name for one in targets):
            found = stated
    return found


def same_version(one: str, other: str) -> bool:
    """Whether two spellings mean one version; a local part (``+cu130``) counts only where both have one."""
    first, second = (re.sub(r"[-_.]+", ".", text.strip().lower().lstrip("v")).partition("+") for text in (one, other))
    return first[0] == second[0] and (first[2] == second[2] or not (first[2] and second[2]))
