# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that make the units of one family: unit files, drop-ins and what enables them, as one picture of /etc/systemd/system.

A picture is a dictionary of names relative to that folder::

    STEM.service  STEM@.service  STEM@NAME.service       unit files, which may be links
    STEM.service.d/NAME.conf ...                         drop-ins
    multi-user.target.wants/STEM@NAME.service ...        links that enable a unit
    other.service                                        links under other names that lead to a unit of the family
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import stat
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from ansible_collections.ddtree.fleet.plugins.module_utils._releases import (
    Store,
    remove_link,
    sync_directory,
    write_atomically,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import ServiceError, is_runnable, is_unit

OURS = b"# Written by ddtree.fleet"
_ENABLING = (".wants", ".requires", ".upholds")
_EXEC_START = re.compile(rb"^[ \t]*ExecStart[ \t]*=(.*)$", re.MULTILINE)


class UnitFile(NamedTuple):
    """A file with its permission bits, since a hand-written one may hold a secret; or a link (by its mode) and where it leads."""

    content: bytes
    mode: int

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)


Files = Dict[str, UnitFile]


def read(folder: str, stem: str) -> Files:
    """The picture of a family; a file that vanishes meanwhile is not in it."""
    found: Files = {}
    for name in _names(folder, stem):
        file = read_file(os.path.join(folder, name))
        if file is not None:
            found[name] = file
    return found


def write(folder: str, stem: str, wanted: Files) -> List[str]:
    """Make the family on disk exactly the picture, writing only what differs. Gives the names that were changed."""
    return make(folder, read(folder, stem), wanted)


def make(folder: str, present: Files, wanted: Files) -> List[str]:
    """Make the ``present`` files of a folder the ``wanted`` ones. Gives the names that were changed."""
    changed = differing(present, wanted)
    for name in changed:
        path = os.path.join(folder, name)
        if name in wanted:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _write_file(path, wanted[name])
        else:
            remove_link(path)
            _tidy(os.path.dirname(path), folder)
    return changed


def differing(one: Files, other: Files) -> List[str]:
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def enables(name: str) -> bool:
    """Whether a file of a picture is there only to enable a unit."""
    return os.path.dirname(name).endswith(_ENABLING)


def enabled(stem: str, files: Files) -> List[str]:
    """The units that a picture enables."""
    found = {os.path.basename(name) for name in files if enables(name)}
    return sorted(name for name in found if is_runnable(stem, name))


def without_enabling(files: Files) -> Files:
    return {name: file for name, file in files.items() if not enables(name)}


def of_unit(unit: str, files: Files) -> Files:
    """What of a picture says how one unit runs: its file and drop-ins, and those of its template. Not what enables it."""
    stem, at, _instance = unit.partition("@")
    sources = {unit, f"{stem}@.service"} if at else {unit}
    return {name: file for name, file in files.items() if name in sources or _owner(name) in sources}


def has_unit_file(stem: str, files: Files) -> bool:
    return any(is_unit(stem, name) for name in files)


def overriding(files: Files, given: Files) -> List[str]:
    """Names of the drop-ins that set ExecStart= and are neither ``given`` nor ours: with them systemd runs something else than the unit says."""
    return [
        name
        for name, file in sorted(files.items())
        if _owner(name)
        and not enables(name)
        and name not in given
        and not _is_ours(file)
        and _EXEC_START.search(file.content)
    ]


def hand_written(stem: str, files: Files) -> List[str]:
    """Names of the unit files of a picture that somebody else wrote."""
    return sorted(name for name, file in files.items() if is_unit(stem, name) and not _is_ours(file))


def _is_ours(file: UnitFile) -> bool:
    return file.content.startswith(OURS)


def program_of(unit: str, files: Files) -> str:
    """The path that a unit's own files make systemd run; empty when they do not say it plainly."""
    stem, at, _instance = unit.partition("@")
    file = files.get(unit) or (files.get(f"{stem}@.service") if at else None)
    commands = [found.strip() for found in _EXEC_START.findall(file.content)] if file and not file.is_link else []
    if not commands or not commands[-1]:
        return ""
    try:
        word = shlex.split(commands[-1].decode("utf-8", "replace"))[0].lstrip("@-:+!|")
    except (ValueError, IndexError):
        return ""
    return word if word.startswith("/") and "%" not in word and "$" not in word else ""


def given_files(stem: str, texts: Dict[str, Any]) -> Files:
    """The unit files that a user gives, by name; raises ServiceError for a name that is none of the family."""
    for name in texts:
        owner = _owner(name)
        drop_in = owner and name == f"{owner}.d/{os.path.basename(name)}" and name.endswith(".conf")
        if not is_unit(stem, owner if drop_in else name):
            raise ServiceError(
                f"files: {name} is no file of the family {stem}; it has {stem}.service, {stem}@.service, {stem}@NAME.service, "
                "and drop-ins such as {0}.service.d/NAME.conf".format(stem)
            )
        if not isinstance(texts[name], str):
            raise ServiceError(f"files: {name} must be the text of the file, not {type(texts[name]).__name__}")
    return {name: UnitFile(text.encode(), 0o644) for name, text in texts.items()}


def replaced(stem: str, present: Files, given: Files) -> Files:
    """The picture after the unit files of a family were replaced: drop-ins that people wrote and what enables a unit is kept."""
    kept = {
        name: file
        for name, file in present.items()
        if enables(name)
        or (_owner(name) and not file.content.startswith(OURS))
        or not (_owner(name) or is_unit(stem, name))
    }
    return {**kept, **given}


# the unit files that a release served with


def save(store: Store, release: str, stem: str, files: Files) -> bool:
    """Keep a family's picture with a release, unless it has no unit file. Gives whether the copy changed."""
    if not has_unit_file(stem, files):
        return False
    return bool(write(store.unit_copy(release), stem, files))


def saved(store: Store, release: str, stem: str) -> Files:
    """The picture that was saved with a release; empty when none was."""
    return read(store.unit_copy(release), stem)


# pictures as JSON


def to_json(files: Files) -> Dict[str, Any]:
    return {
        name: {"mode": file.mode, "content": base64.b64encode(file.content).decode("ascii")}
        for name, file in sorted(files.items())
    }


def from_json(data: Dict[str, Any]) -> Files:
    return {name: UnitFile(base64.b64decode(file["content"]), int(file["mode"])) for name, file in data.items()}


# single files


def read_file(path: str) -> Optional[UnitFile]:
    """A regular file or a link; None when there is neither."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            return UnitFile(os.fsencode(os.readlink(path)), stat.S_IFLNK)
        if not stat.S_ISREG(mode):
            return None
        with open(path, "rb") as file:
            return UnitFile(file.read(), stat.S_IMODE(mode))
    except FileNotFoundError:
        return None


def _write_file(path: str, file: UnitFile) -> None:
    if not file.is_link:
        write_atomically(path, file.content, file.mode)
        os.chmod(path, file.mode)  # whatever the umask took away
        return
    temporary = f"{path}.{os.getpid()}.new"
    remove_link(temporary)
    os.symlink(os.fsdecode(file.content), temporary)
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


def _tidy(directory: str, folder: str) -> None:
    """Remove a folder of drop-ins or enabling links that has become empty."""
    if directory == folder:
        sync_directory(folder)
        return
    try:
        os.rmdir(directory)
    except OSError:
        sync_directory(directory)


def _owner(name: str) -> str:
    """The unit that a drop-in or an enabling link belongs to by its folder; empty for a file that stands in no folder."""
    folder = os.path.dirname(name)
    return folder[: -len(".d")] if folder.endswith(".d") else folder


def _names(folder: str, stem: str) -> Iterator[str]:
    try:
        items = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for item in items:
        path = os.path.join(folder, item)
        if os.path.isdir(path) and not os.path.islink(path):
            owner, dot, kind = item.rpartition(".")
            if kind == "d" and is_unit(stem, owner):
                yield from (f"{item}/{name}" for name in sorted(os.listdir(path)) if name.endswith(".conf"))
            elif dot + kind in _ENABLING:
                inside = sorted(os.listdir(path))
                yield from (f"{item}/{name}" for name in inside if _leads_to(stem, os.path.join(path, name)))
        elif is_unit(stem, item) or _leads_to(stem, path):
            yield item


def _leads_to(stem: str, path: str) -> bool:
    """Whether a link stands for a unit of the family, by its own name or by where it leads."""
    if not os.path.islink(path):
        return False
    return is_unit(stem, os.path.basename(path)) or is_unit(stem, os.path.basename(os.readlink(path)))
