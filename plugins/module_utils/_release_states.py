# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The states that venv_release brings a dest to, each in check mode too."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils import _manifest
from ansible_collections.ddtree.fleet.plugins.module_utils._hashing import hash_tree
from ansible_collections.ddtree.fleet.plugins.module_utils._index import HashIndex, index_path
from ansible_collections.ddtree.fleet.plugins.module_utils._lease import DEFAULT_MINUTES, Lease
from ansible_collections.ddtree.fleet.plugins.module_utils._releases import (
    NO_RELEASE,
    ReleaseError,
    Store,
    now,
    write_atomically,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._service import family
from ansible_collections.ddtree.fleet.plugins.module_utils._service.paths import stem_of
from ansible_collections.ddtree.fleet.plugins.module_utils._stream.environment import outside_links
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import (
    Entry,
    scan,
    show,
    tree_digest,
)


@dataclass(frozen=True)
class Request:
    """The options of venv_release; see its documentation."""

    dest: str
    state: str
    check: bool
    release: Optional[str] = None
    verdict: Optional[str] = None
    unit: Optional[str] = None
    keep: int = 3
    run_id: Optional[str] = None
    actor: str = ""
    lock_minutes: int = DEFAULT_MINUTES
    lock_take_over: bool = False
    lock_instead_of: Optional[str] = None


def reach(request: Request) -> Dict[str, Any]:
    """Bring the dest to the wanted state; gives a module's result. Raises ReleaseError, LeaseError, TreeError or OSError."""
    store = Store(request.dest)
    before = store.active() or ""
    result: Dict[str, Any] = {"changed": False, "removed": []}
    release = _resolve(store, request.release)
    if release:
        result["release"] = release
    result.update(STATES[request.state](store, request, release))
    after = store.active() or ""
    if request.check and request.state in ("active", "inactive"):
        after = release if request.state == "active" else ""
    result.update(active=after, way_back=store.way_back(), store=store.listing(), lock=Lease(store.dest).holder())
    result["diff"] = {"before": {"active": before}, "after": {"active": after}}
    return result


def _resolve(store: Store, release: Optional[str]) -> str:
    if release != "previous":
        return release or ""
    found = store.previous()
    if not found:
        raise ReleaseError(f"{store.dest} has no previous release that served well, so there is no way back")
    return found


def _present(store: Store, request: Request, release: str) -> Dict[str, Any]:
    if not release:
        return {}
    store.need(release)
    if not request.verdict:
        return {}
    changed = (
        store.verdict(release) != request.verdict
        if request.check
        else store.judge(release, request.verdict, request.actor)
    )
    return {"changed": changed}


def _active(store: Store, request: Request, release: str) -> Dict[str, Any]:
    changed = store.would_activate(release)
    if not request.check:
        _save_unit(store, request, store.active() or NO_RELEASE)
        store.activate(release, request.actor)
    return {"changed": changed}


def _inactive(store: Store, request: Request, release: str) -> Dict[str, Any]:
    changed = store.dest_kind() == "release"
    if not request.check:
        _save_unit(store, request, store.active() or NO_RELEASE)
        store.deactivate(request.actor)
    return {"changed": changed}


def _family(request: Request) -> Tuple[str, str]:
    """The folder and the stem of the family of units that ``unit`` names."""
    folder, name = os.path.split(str(request.unit))
    return folder, stem_of(name)


def _save_unit(store: Store, request: Request, release: str) -> None:
    """Keep the installed unit files with the release that they serve, or as what was there before there was any release."""
    if request.unit:
        folder, stem = _family(request)
        family.save(store, release, stem, family.read(folder, stem))


def _adopted(store: Store, request: Request, release: str) -> Dict[str, Any]:
    if store.dest_kind() != "directory":
        return {}
    if request.check:
        return {"changed": True}
    root = os.fsencode(store.dest)
    index = HashIndex(index_path(os.fsencode(store.root)))
    entries = scan(root)
    hashes = hash_tree(root, entries, index.lookup)
    facts = {
        "files": len(hashes),
        "bytes": sum(entry.size for entry in entries),
        "entries": len(entries),
        "src": store.dest,
        "source": "adopted",
        "environment": {},
    }
    digest = tree_digest(entries, hashes)
    _refuse_links_that_would_break(store, entries)
    adopted = store.adoption_id(digest)
    store.write_meta(
        adopted, {**facts, "received_digest": digest, "installed_digest": digest, "adopted": True, "committed": now()}
    )
    provenance = _manifest.Provenance(label=f"release {adopted}")
    write_atomically(store.manifest_path(adopted), _manifest.render(entries, hashes, provenance))
    _save_unit(store, request, adopted)
    store.adopt(adopted, request.actor)
    return {"changed": True, "release": adopted}


def _refuse_links_that_would_break(store: Store, entries: List[Entry]) -> None:
    """Raise ReleaseError for relative links out of dest that lead to something now and would not from inside the store."""
    root, release = os.fsencode(store.dest), os.fsencode(store.path("release"))
    for entry in outside_links(entries, root):
        moved = os.path.normpath(os.path.join(release, os.path.dirname(entry.path), entry.target))
        if os.path.exists(os.path.join(root, entry.path)) and not os.path.exists(moved):
            raise ReleaseError(
                f"{store.dest}/{show(entry.path)} is a link to {show(entry.target)}, which would lead nowhere once the directory "
                f"stands in {store.root}; make the link absolute, then adopt it"
            )


def _absent(store: Store, request: Request, release: str) -> Dict[str, Any]:
    store.check_removable(release)
    removed = release in store.releases()
    if removed and not request.check:
        store.remove(release, request.actor)
    return {"changed": removed, "removed": [release] if removed else []}


def _pruned(store: Store, request: Request, release: str) -> Dict[str, Any]:
    if request.keep < 0:
        raise ReleaseError(f"keep must be 0 or more, not {request.keep}")
    doomed = store.prunable(request.keep)
    unused = store.unused_interpreters(without=doomed)
    if not request.check:
        for name in doomed:
            store.remove(name, request.actor)
        for name in unused:
            store.interpreters().remove(name, request.actor)
    return {"changed": bool(doomed or unused), "removed": doomed}


def _locked(store: Store, request: Request, release: str) -> Dict[str, Any]:
    lease = Lease(store.dest)
    if request.check:
        lease.check(str(request.run_id), request.lock_take_over, request.lock_instead_of or "")
    else:
        lease.acquire(
            str(request.run_id),
            request.actor or "somebody",
            request.lock_minutes,
            request.lock_take_over,
            request.lock_instead_of or "",
        )
    return {}  # a lease is no change of the host: a run that changes nothing takes and gives it back


def _unlocked(store: Store, request: Request, release: str) -> Dict[str, Any]:
    if not request.check:
        Lease(store.dest).release(str(request.run_id))
    return {}


STATES: Dict[str, Callable[[Store, Request, str], Dict[str, Any]]] = {
    "present": _present,
    "active": _active,
    "inactive": _inactive,
    "adopted": _adopted,
    "absent": _absent,
    "pruned": _pruned,
    "locked": _locked,
    "unlocked": _unlocked,
}
