# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: report
type: aggregate
short_description: One page for people and one JSON for machines at the end of a deployment
version_added: 0.2.0
author: the ddtree.fleet authors (@ddtree)
description:
  - Writes down what became of each host, why, and what was seen - releases, gates, accept length and tokens per second against the baseline,
    what was sent, and how long each phase took. Hosts that failed come first.
  - Nothing is missing because a play ended early. Failed and unreachable hosts are in it, and so is a run that was interrupted.
  - The page is one HTML file that needs no network. The JSON holds the same.
  - Only named fields of the results of this collection's modules get in, without secrets. Nothing of a task with C(no_log) does.
  - Writes nothing for playbooks that deploy nothing, unless a host failed in one that runs other tasks of this collection.
  - A report that cannot be written is a warning, and changes nothing about the run.
requirements:
  - C(ddtree.fleet.report) in C(callbacks_enabled), after C(ddtree.fleet.summary) so that its path is the last line
options:
  report_dir:
    description:
      - The folder for the reports, made where it is missing. A relative one is below the directory that C(ansible-playbook) is started in.
      - Each run adds two files that only their owner may read. C(latest.html) and C(latest.json) lead to the newest.
      - Empty switches the report off.
    type: str
    default: ddtree-reports
    ini:
      - section: ddtree_report
        key: directory
    env:
      - name: DDTREE_REPORT_DIR
seealso:
  - plugin: ddtree.fleet.summary
    plugin_type: callback
"""

from pathlib import Path

from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.callback import RecordingCallback
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.files import write
from ansible_collections.ddtree.fleet.plugins.plugin_utils._run.model import Run


class CallbackModule(RecordingCallback):
    """Writes the report of a run, once at its end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "ddtree.fleet.report"
    CALLBACK_NEEDS_ENABLED = True

    def told(self, run: Run) -> None:
        folder = self.get_option("report_dir")
        if not folder:
            return
        try:
            page = write(run, Path(folder).expanduser())
        except (OSError, RuntimeError) as error:
            self._display.warning(
                f"no report was written to {folder}: {error}; set DDTREE_REPORT_DIR to a folder that can be written"
            )
            return
        self._display.display(f"Report: {page}")
