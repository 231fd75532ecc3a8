# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.ddtree.fleet.plugins.module_utils._native.architectures import Image, parse_architecture


@pytest.mark.parametrize(
    ("code", "gpu", "runs"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False),
        ("sm_100", "sm_103", True),
        ("sm_103", "sm_100", False),
        ("sm_100", "sm_120", False),
        ("sm_120", "sm_121", True),
        ("sm_90a", "sm_90", True),
        ("sm_100a", "sm_103", False),
        ("sm_103a", "sm_103", True),
        ("sm_120a", "sm_121", False),
        ("sm_100f", "sm_103", True),
        ("sm_103f", "sm_100", False),
        ("sm_100f", "sm_110", False),
        ("sm_120f", "sm_121", True),
        ("sm_86", "sm_87", False),
        ("sm_87", "sm_89", False),
        ("sm_87", "sm_87", True),
        ("compute_80", "sm_120", True),
        ("compute_120", "sm_103", False),
        ("compute_103", "sm_103", True),
        ("compute_86", "sm_87", True),
        ("compute_90a", "sm_90", True),
        ("compute_90a", "sm_100", False),
        ("compute_100f", "sm_103", True),
        ("compute_100f", "sm_120", False),
        ("sm_120a", "sm_120a", True),
        ("sm_120", "sm_120a", False),
        ("sm_120f", "sm_120a", False),
        ("compute_120a", "sm_120a", True),
        ("sm_100f", "sm_100f", True),
        ("sm_100a", "sm_100f", False),
    ],
)
def test_which_gpu_runs_which_code(code: str, gpu: str, runs: bool) -> None:
    image = Image(parse_architecture(code.replace("compute", "sm")), code.startswith("compute"))
    assert image.runs_on(parse_architecture(gpu)) is runs
    assert str(image) == code


@pytest.mark.parametrize(
    "text", ["", "sm_", "sm_9", "sm_090", "sm_1000", "sm_90b", "sm_90aa", "SM_90", "10.3", "compute_90", "sm_90\n"]
)
def test_what_is_no_architecture_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no architecture such as sm_90, sm_103a or sm_120f"):
        parse_architecture(text)
