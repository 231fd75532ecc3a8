# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of modules that look at an environment and compare it with a baseline."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  root:
    description: The environment to look at, such as a virtual environment or the directory of a release.
    type: path
    required: true
  site_packages:
    description:
      - The directory of packages, absolute or relative to O(root).
      - Without it, the only C(lib/python3.*/site-packages) below O(root) is taken.
    type: path
  interpreter:
    description:
      - The interpreter that compiles and parses, absolute or relative to O(root). Without it, C(bin/python) below O(root).
      - It is started once for all files, with C(-I -B -S), and only if a file is to be compiled or parsed.
    type: path
  baseline:
    description:
      - What the environment's packages are compared with.
      - Compiled files do not count, except for one that stands alone outside C(__pycache__), since it is imported then.
      - A file that the baseline does not list counts as added where it is in a directory in which only O(baseline.distribution)
        has files, so that distributions may share a package such as C(nvidia).
    type: dict
    suboptions:
      kind:
        description:
          - V(record) compares with the RECORD that pip or uv wrote when they installed the wheel. A distribution without one, an
            editable install, and two of one name are refused.
          - V(wheel) compares with the members of the wheel itself, read without unpacking it.
          - V(snapshot) compares with a directory or a manifest of the environment as it should be.
          - V(backups) compares files with the backups that stand beside them, and says nothing of files without one.
          - Launchers outside site-packages are compared without the lines that name the interpreter, since those change with the
            environment's place. Where the baseline has no contents, as V(record), one that differs is not verified.
        type: str
        choices: [record, wheel, snapshot, backups]
        default: record
      distribution:
        description:
          - The name of the distribution, or several. V(all) is every distribution in site-packages; what belongs to none counts
            as added then.
          - All spellings of a name are one. V(wheel), V(snapshot) and V(backups) also take a package that was copied there, without
            a dist-info directory, by the name of its directory.
        type: list
        elements: str
        default: [sglang]
      path:
        description:
          - For V(wheel), a wheel or a folder of wheels. Of those with the name and version that is installed, the one that has the
            same C(WHEEL) file is taken.
          - For V(snapshot), another environment or release, its site-packages, an unpacked wheel, or a manifest that
            M(ddtree.fleet.manifest_sha256) or C(sha256sum) wrote at the top of an environment, in its site-packages or above.
            One of C(sha256sum) lists no links, so none is an added one.
        type: path
      patterns:
        description:
          - How backup files are named. Each pattern begins with C(*), which stands for the name of the file that was backed up.
          - For V(backups), the oldest of several backups of one file is the baseline, by its modification time.
          - For all other kinds, an added file that matches is judged by O(policy.backups) instead of O(policy.added).
        type: list
        elements: str
        default: ['*.orig', '*.bak', '*.bak[0-9._-]*', '*~']
  policy:
    description:
      - What each kind of finding means. V(warn) lets it pass with a warning, V(ignore) without. The result lists it in any case.
    type: dict
    suboptions:
      modified:
        description: An undeclared file whose content differs from the baseline.
        type: str
        choices: [fail, warn, ignore]
        default: fail
      added:
        description: An undeclared file that the baseline does not have.
        type: str
        choices: [fail, warn, ignore]
        default: fail
      missing:
        description: An undeclared file of the baseline that is not there.
        type: str
        choices: [fail, warn, ignore]
        default: fail
      unmodified:
        description: A declared file that equals the baseline.
        type: str
        choices: [fail, warn, ignore]
        default: fail
      version:
        description:
          - A C(__version__) of the package that is not that of its dist-info directory, or not O(version).
          - With V(fail), nothing else is compared then. Otherwise a V(wheel) is chosen by what the package says itself.
        type: str
        choices: [fail, warn, ignore]
        default: fail
      backups:
        description: An added file that matches O(baseline.patterns). Not looked at where they are the baseline.
        type: str
        choices: [fail, warn, ignore]
        default: fail
  version:
    description:
      - The version of the package that is expected. A local part such as C(+cu130) counts only where both versions have one.
      - Also without it, a C(__version__) of the package that differs from that of its dist-info directory fails in one check,
        and nothing is compared then. With V(snapshot) and V(backups), which do not depend on dist-info, that is a warning.
      - Where O(baseline.distribution) names several, only those whose files differ too fail, since many packages state a version
        that nobody keeps up to date.
    type: str
"""
