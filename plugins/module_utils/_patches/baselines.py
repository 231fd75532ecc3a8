# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an environment differs from a baseline. A new one is one function beside ``_compare_with_record`` and its line in ``BASELINES``."""

from __future__ import annotations

from typing import Callable, Dict, NamedTuple, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._patches.environment import Environment, PatchError
from ansible_collections.ddtree.fleet.plugins.module_utils._patches.verdict import NAMES_IN_MESSAGE, Verdict
from ansible_collections.ddtree.fleet.plugins.module_utils._record import (
    Distribution,
    RecordError,
    find_distribution,
    own_version,
    same_version,
    show_name,
    take_inventory,
)
from ansible_collections.ddtree.fleet.plugins.module_utils._verdict import Check


class Baseline(NamedTuple):
    """What the environment is compared with; ``version`` is the package version it should be, where that is declared."""

    kind: str
    distribution: str
    version: Optional[str] = None


def _compare_with_record(environment: Environment, baseline: Baseline, files: Sequence[str], verdict: Verdict) -> None:
    """Hold the distribution's files against its RECORD: all that differ must be declared, all that are declared must differ."""
    try:
        distribution = find_distribution(environment.site, baseline.distribution)
        if distribution.is_editable():
            raise RecordError(
                f"{distribution.dist_info} of an editable install", "its files are elsewhere; install the wheel"
            )
        if not _check_version(environment, distribution, baseline, verdict):
            return
        inventory = take_inventory(environment.root, environment.site, distribution)
    except RecordError as error:
        name = f"baseline record of {baseline.distribution}"
        verdict.checks.append(Check(name, False, f"one RECORD in {environment.site}", error.found, error.hint))
        return
    except OSError as error:
        raise PatchError(f"{show_name(str(error.filename))}: {error.strerror}") from error
    declared = set(files)
    verdict.inventory = inventory.result()
    _check_names(
        verdict,
        "undeclared",
        "no undeclared file that differs from RECORD",
        [file for file in sorted(inventory.modified + inventory.added) if file not in declared],
        "declare in files what belongs to the patch set, restore or remove the rest",
    )
    _check_names(
        verdict,
        "unmodified",
        "every declared file to differ from RECORD",
        [file for file in files if file in inventory.equal],
        "these are the wheel's own: the patch is not applied",
    )
    _check_names(
        verdict,
        "missing",
        "every file of RECORD to be there",
        [file for file in inventory.missing if file not in declared],
        "reinstall the distribution and apply the patch set again",
    )
    known = set(inventory.modified) | set(inventory.missing) | set(inventory.added) | inventory.equal
    verdict.warnings += [
        f"{show_name(file)} is declared, but RECORD of {distribution.dist_info} has nothing to compare it with"
        for file in files
        if file not in known
    ]


def _check_names(verdict: Verdict, name: str, expected: str, names: Sequence[str], hint: str) -> None:
    shown = ", ".join(show_name(one) for one in names[:NAMES_IN_MESSAGE])
    if len(names) > NAMES_IN_MESSAGE:
        shown += f" and {len(names) - NAMES_IN_MESSAGE} more"
    verdict.checks.append(
        Check(name, not names, expected, f"{len(names)}: {shown}" if names else "0", hint if names else "")
    )


def _check_version(environment: Environment, distribution: Distribution, baseline: Baseline, verdict: Verdict) -> bool:
    """Whether RECORD speaks of the version that stands there; one check says so, and whether it is the declared version."""
    own = own_version(environment.site, distribution)
    verdict.versions = {"dist_info": distribution.version, "package": own}
    consistent = own is None or same_version(own, distribution.version)
    wanted = baseline.version
    if wanted and own is None:
        verdict.warnings.append(
            f"{distribution.name} states no __version__ as a plain text, so only {distribution.dist_info} tells its version"
        )
    if not consistent:
        found = f"dist-info says {distribution.version}, __version__ says {own}"
        hint = "the package directory was copied over another version; RECORD is no baseline here, install the wheel of the version that is meant"
        verdict.checks.append(
            Check(
                "version", False, f"{wanted} in both" if wanted else "one version", found, hint, distribution.dist_info
            )
        )
    elif wanted:
        found = own or distribution.version
        verdict.checks.append(Check("version", same_version(found, wanted), wanted, found, "", distribution.dist_info))
    return consistent


BASELINES: Dict[str, Callable[[Environment, Baseline, Sequence[str], Verdict], None]] = {"record": _compare_with_record}
