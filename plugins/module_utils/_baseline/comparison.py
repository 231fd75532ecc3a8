# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An environment held against a baseline: all that differ must be declared, all that are declared must differ.

A new baseline is a module beside ``record`` with one class like those in ``BASELINES``, and its line there.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Protocol, Sequence, Set, Tuple, Type

from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.backups import (
    BackupsBaseline,
    backed_up,
    malformed_pattern,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.drift import drift
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.installed import (
    Distribution,
    Installed,
    normalized,
    same_version,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.inventory import (
    Inventory,
    strays,
    take_inventories,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.model import (
    ALL,
    FAIL,
    IGNORE,
    SHOWN,
    WARN,
    WHOLE,
    Baseline,
    BaselineError,
    Reference,
    Territory,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.record import RecordBaseline
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.snapshot import SnapshotBaseline
from ansible_collections.ddtree.fleet.plugins.module_utils._baseline.wheel import WheelBaseline
from ansible_collections.ddtree.fleet.plugins.module_utils._files import show_name, some
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import Environment, PatchError
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.verdict import Verdict
from ansible_collections.ddtree.fleet.plugins.module_utils._tree import TreeError
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check


class Kind(Protocol):
    """One kind of baseline, made once for a run. Both methods raise BaselineError where there is no baseline."""

    def __init__(self, installed: Installed, baseline: Baseline) -> None: ...

    def reference(self, distribution: Optional[Distribution], versions: Sequence[str]) -> Reference:
        """What it says of a distribution of the first version that it knows; of all of site-packages, where asked for none."""


class Way(NamedTuple):
    """How a kind is used. ``of_dist_info``: it speaks of the version that dist-info names, each distribution for itself."""

    kind: Type[Kind]
    of_dist_info: bool = False
    needs_path: bool = False


BASELINES: Dict[str, Way] = {
    "record": Way(RecordBaseline, of_dist_info=True),
    "wheel": Way(WheelBaseline, of_dist_info=True, needs_path=True),
    "snapshot": Way(SnapshotBaseline, needs_path=True),
    "backups": Way(BackupsBaseline),
}


class _Compared(NamedTuple):
    distribution: Optional[Distribution]
    own_version: Optional[str]
    reference: Reference

    def territory(self, installed: Installed) -> Optional[Territory]:
        if not self.reference.complete:
            return None
        return installed.territory(self.distribution, self.reference.files) if self.distribution else WHOLE

    def consistent(self) -> bool:
        if not (self.distribution and self.distribution.version and self.own_version):
            return True
        return same_version(self.own_version, self.distribution.version)


def check_baseline(baseline: Baseline) -> None:
    """Raises PatchError for what was asked for and cannot be."""
    if not baseline.distributions:
        raise PatchError("baseline.distribution names none; give a name, a list of names, or all")
    if ALL in baseline.distributions and len(baseline.distributions) > 1:
        raise PatchError("baseline.distribution: all includes the others, so nothing can stand beside it")
    if baseline.version and not _is_single(baseline):
        raise PatchError("version is for one distribution, but baseline.distribution names more")
    if baseline.path and not BASELINES[baseline.kind].needs_path:
        raise PatchError(f"baseline.path is for kinds wheel and snapshot, not for {baseline.kind}")
    for pattern in baseline.patterns:
        if malformed_pattern(pattern):
            raise PatchError(f"baseline.patterns: {malformed_pattern(pattern)}")


class Difference(NamedTuple):
    """One file that differs: ``what`` is modified, added or missing, ``reference`` the baseline that has or lacks it."""

    path: str
    what: str
    reference: Reference


def compare(environment: Environment, baseline: Baseline, files: Sequence[str], verdict: Verdict) -> None:
    """Adds checks, warnings, inventory and drift to the verdict. Raises PatchError for what cannot be read."""
    looked = _look(environment, baseline, verdict)
    if looked and looked.compared:
        _Judgement(baseline, files, verdict).judge(*looked)


def differences(environment: Environment, baseline: Baseline, verdict: Verdict) -> List[Difference]:
    """All that differs by path, backups of files left out. Why there is no baseline is a failed check of the verdict."""
    looked = _look(environment, baseline, verdict)
    found: Dict[str, Difference] = {}
    for one, inventory in zip(looked.compared, looked.inventories) if looked else ():
        for what in ("modified", "added", "missing"):
            for path in inventory.lists()[what]:
                found.setdefault(path, Difference(path, what, one.reference))
    if looked and looked.compared:
        for path in looked.alone:
            found.setdefault(path, Difference(path, "added", looked.compared[0].reference))
    if baseline.kind != "backups":
        found = {
            path: one for path, one in found.items() if one.what != "added" or not backed_up(path, baseline.patterns)
        }
    return [found[path] for path in sorted(found)]


class _Looked(NamedTuple):
    installed: Installed
    compared: List[_Compared]
    inventories: List[Inventory]
    alone: Sequence[str]


def _look(environment: Environment, baseline: Baseline, verdict: Verdict) -> Optional[_Looked]:
    """What was found of every distribution; ``None`` where there is no baseline, which the verdict says then."""
    try:
        installed = Installed(environment.root, environment.site)
        compared = _references(installed, baseline, verdict)
        references = [one.reference for one in compared]
        apart = ALL in baseline.distributions and any(one.distribution for one in compared)
        territories = [None if apart else one.territory(installed) for one in compared]
        inventories = take_inventories(installed, references, territories)
        alone = strays(installed, references) if apart else []
    except BaselineError as error:
        _no_baseline(baseline, ", ".join(baseline.distributions), error, verdict)
        return None
    except TreeError as error:
        raise PatchError(str(error)) from error
    except OSError as error:
        raise PatchError(f"{show_name(str(error.filename))}: {error.strerror}") from error
    return _Looked(installed, compared, inventories, alone)


def _is_single(baseline: Baseline) -> bool:
    return len(baseline.distributions) == 1 and ALL not in baseline.distributions


def _no_baseline(baseline: Baseline, name: str, error: BaselineError, verdict: Verdict) -> None:
    check = Check(f"baseline {baseline.kind} of {name}", False, "one to compare with", error.found, error.hint)
    verdict.checks.append(check)


def _references(installed: Installed, baseline: Baseline, verdict: Verdict) -> List[_Compared]:
    """What there is to compare with; a distribution without is one failed check."""
    way = BASELINES[baseline.kind]
    kind = way.kind(installed, baseline)
    if ALL in baseline.distributions and not way.of_dist_info:
        return [_Compared(None, None, kind.reference(None, []))]
    names, single = baseline.distributions, _is_single(baseline)
    if ALL in names:
        names = list({normalized(one.name): one.name for one in installed.distributions}.values())
    compared = []
    for name in names:
        try:
            distribution = installed.find(name, listed=baseline.kind == "record")
            own = installed.own_version(distribution)
            if single and not _check_version(distribution, own, baseline, verdict):
                continue
            reference = kind.reference(distribution, _versions(distribution, own, baseline))
        except BaselineError as error:
            _no_baseline(baseline, name, error, verdict)
            continue
        verdict.warnings += reference.warnings
        compared.append(_Compared(distribution, own, reference))
    return compared


def _versions(distribution: Distribution, own: Optional[str], baseline: Baseline) -> List[str]:
    """Those that a distribution may be of, the likely one first; its own counts only where it may differ from dist-info's."""
    if not distribution.version:
        return [own or ""]
    if own and not same_version(own, distribution.version) and baseline.level("version") != FAIL:
        return [own, distribution.version]
    return [distribution.version]


def _check_version(distribution: Distribution, own: Optional[str], baseline: Baseline, verdict: Verdict) -> bool:
    """Whether to go on; one check says whether dist-info and package are of one version, and of the declared one."""
    verdict.versions = {"dist_info": distribution.version or None, "package": own}
    wanted, level = baseline.version, baseline.level("version")
    dist_info = distribution.dist_info or distribution.name
    if level == IGNORE:
        return True
    if wanted and own is None:
        verdict.warnings.append(
            f"{distribution.name} states no __version__ as a plain text, so only {dist_info} tells its version"
        )
    if own and distribution.version and not same_version(own, distribution.version):
        found = f"dist-info says {distribution.version}, __version__ says {own}"
        if not BASELINES[baseline.kind].of_dist_info and (not wanted or same_version(own, wanted)):
            verdict.warnings.append(
                f"{distribution.name}: {found}; the package directory was copied over another version"
            )
            return True
        expected = f"{wanted} in both" if wanted else "one version"
        hint = (
            "the package directory was copied over another version; this is no baseline for it: install the wheel of the "
            "version that is meant, or compare with kind snapshot or backups"
        )
        _level_check(verdict, level, Check("version", False, expected, found, hint, dist_info))
        return level != FAIL
    if wanted:
        found = own or distribution.version or "none"
        _level_check(verdict, level, Check("version", same_version(found, wanted), wanted, found, "", dist_info))
    return True


def _level_check(verdict: Verdict, level: str, check: Check) -> None:
    """Add a check as its level says: one that may only warn passes."""
    if level == IGNORE:
        return
    if level == WARN and not check.passed:
        verdict.warnings.append(check.sentence())
        check = Check(check.name, True, check.expected, check.found, "", check.file)
    verdict.checks.append(check)


class _Judgement:
    """Differences held against what is declared."""

    def __init__(self, baseline: Baseline, files: Sequence[str], verdict: Verdict) -> None:
        self.baseline, self.files, self.verdict = baseline, files, verdict
        self.declared = set(files)

    def judge(
        self, installed: Installed, compared: List[_Compared], inventories: List[Inventory], alone: Sequence[str]
    ) -> None:
        pairs = list(zip(compared, inventories))
        if not _is_single(self.baseline):
            pairs, foreign = self._check_versions(pairs)
            alone = [path for path in alone if path.partition("/")[0] not in foreign]
        merged: Dict[str, Set[str]] = {name: set() for name in Inventory().lists()}
        for _one, inventory in pairs:
            for name, paths in inventory.lists().items():
                merged[name].update(paths)
        merged["added"].update(alone)
        backups = set()
        if self.baseline.kind != "backups":
            backups = {path for path in merged["added"] - self.declared if backed_up(path, self.baseline.patterns)}
        merged["added"] -= backups
        merged["equal"] -= merged["modified"]
        undeclared = {name: merged[name] - self.declared for name in ("modified", "added", "missing")}
        unmodified = self.declared & merged["equal"]
        name = compared[0].reference.name if len(compared) == 1 else f"the {self.baseline.kind} baseline"
        self._check_names(undeclared, unmodified, backups, name)
        self._warn_of_incomparable(merged, name)
        self.verdict.inventory = self._result(pairs, merged, undeclared, unmodified, backups)
        self.verdict.drift = self._drift(installed, pairs)

    def _check_versions(
        self, pairs: List[Tuple[_Compared, Inventory]]
    ) -> Tuple[List[Tuple[_Compared, Inventory]], Set[str]]:
        """Leaves out distributions whose files are of another version, and gives their packages.

        A version alone is no such sign, as many packages state one that nobody keeps up to date.
        """
        level, kept, wrong = self.baseline.level("version"), [], []
        foreign: Set[str] = set()
        for one, inventory in pairs:
            differing = set(inventory.modified + inventory.missing + inventory.added) - self.declared
            if one.distribution and differing and not one.consistent() and BASELINES[self.baseline.kind].of_dist_info:
                wrong.append(f"{one.distribution.dist_info} (__version__ says {one.own_version})")
                if level == FAIL:
                    foreign.update(one.distribution.packages)
                    continue
            kept.append((one, inventory))
        hint = "the package directory was copied over another version; install the wheel of the version that is meant"
        found = f"{len(wrong)}: {some(wrong)}" if wrong else "0"
        expected = "no distribution whose files are of another version than its dist-info"
        _level_check(self.verdict, level, Check("version", not wrong, expected, found, hint if wrong else ""))
        return kept, foreign

    def _check_names(self, undeclared: Dict[str, Set[str]], unmodified: Set[str], backups: Set[str], name: str) -> None:
        declare = "declare in files what belongs to the patch set, restore or remove the rest"
        self._check(
            "modified", f"no undeclared file whose content differs from {name}", undeclared["modified"], declare
        )
        self._check("added", f"no undeclared file that {name} does not have", undeclared["added"], declare)
        self._check(
            "missing",
            f"every file of {name} to be there",
            undeclared["missing"],
            "reinstall the distribution and apply the patch set again",
        )
        self._check(
            "unmodified",
            f"every declared file to differ from {name}",
            unmodified,
            "these are as they were before: the patch is not applied",
        )
        if self.baseline.kind != "backups":
            self._check(
                "backups",
                "no backup files among the packages",
                backups,
                "remove them, or set backups to warn or ignore in policy",
            )

    def _check(self, what: str, expected: str, names: Set[str], hint: str) -> None:
        found = f"{len(names)}: {some(sorted(names))}" if names else "0"
        check = Check(what, not names, expected, found, hint if names else "")
        _level_check(self.verdict, self.baseline.level(what), check)

    def _warn_of_incomparable(self, merged: Dict[str, Set[str]], name: str) -> None:
        known = merged["modified"] | merged["missing"] | merged["added"] | merged["equal"]
        self.verdict.warnings += [
            f"{show_name(file)} is declared, but {name} has nothing to compare it with"
            for file in self.files
            if file not in known
        ]

    def _result(
        self,
        pairs: Sequence[Tuple[_Compared, Inventory]],
        merged: Dict[str, Set[str]],
        undeclared: Dict[str, Set[str]],
        unmodified: Set[str],
        backups: Set[str],
    ) -> Dict[str, Any]:
        lists = {name: merged[name] for name in ("modified", "missing", "added", "unverified")}
        lists.update(backups=backups, unmodified=unmodified)
        result: Dict[str, Any] = {name: _shown(paths) for name, paths in lists.items()}
        result["undeclared"] = {name: _shown(paths) for name, paths in undeclared.items()}
        result["counts"] = {name: len(paths) for name, paths in lists.items()}
        result["counts"]["equal"] = len(merged["equal"])
        distributions = [
            {
                "name": one.distribution.name,
                "version": one.distribution.version,
                "baseline": one.reference.name,
                "counts": {name: len(paths) for name, paths in inventory.lists().items()},
            }
            for one, inventory in pairs
            if one.distribution
        ]
        distributions.sort(key=lambda one: (-_differing(one), one["name"]))
        result["distributions"] = distributions[:SHOWN]
        return result

    def _drift(
        self, installed: Installed, pairs: Sequence[Tuple[_Compared, Inventory]]
    ) -> Optional[List[Dict[str, str]]]:
        """What is not declared comes first, as the number of files is bounded. ``None`` where no baseline has contents."""
        if not any(one.reference.content for one, _inventory in pairs):
            return None
        places = [(path, one.reference) for one, inventory in pairs for path in inventory.modified]
        places.sort(key=lambda place: (place[0] in self.declared, place[0]))
        return drift(installed.site, places)


def _differing(distribution: Dict[str, Any]) -> int:
    return sum(distribution["counts"][name] for name in ("modified", "missing", "added"))


def _shown(paths: Set[str]) -> List[str]:
    return [show_name(path) for path in sorted(paths)[:SHOWN]]
