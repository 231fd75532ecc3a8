# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What NVIDIA's cuobjdump lists, for libraries whose fatbins are of a form that ``fatbin`` does not know."""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import tempfile
from typing import IO, List, Optional, Set

from ansible_collections.ddtree.fleet.plugins.module_utils._native.architectures import Image, parse_architecture

ANSWER_SECONDS = 60
MAX_TOOLS, MAX_ANSWER = 4, 16 << 20
LINE = re.compile(r"(ELF|PTX) file +\d+: .*\.(sm_[1-9]\d{1,2}[af]?)\.(?:cubin|ptx)")


class CuobjdumpError(Exception):
    """There is no listing; the message says why."""


def find_tools(root: str, site: str) -> List[str]:
    """Those of the environment first, then that of PATH, then those of installed toolkits with the newest first."""
    packages = glob.escape(site)
    found = sorted(glob.glob(os.path.join(packages, "nvidia", "*", "bin", "cuobjdump")), reverse=True)
    found += glob.glob(os.path.join(packages, "triton", "backends", "nvidia", "bin", "cuobjdump"))
    found.append(os.path.join(root, "bin", "cuobjdump"))
    found.append(shutil.which("cuobjdump") or "")
    found += sorted(glob.glob("/usr/local/cuda*/bin/cuobjdump"), reverse=True)
    return [path for path in dict.fromkeys(found) if os.path.isfile(path) and os.access(path, os.X_OK)][:MAX_TOOLS]


def list_images(tools: List[str], path: str) -> Set[Image]:
    """The images by the first tool that can list them. Raises CuobjdumpError.

    A tool that does not answer in time is taken out of ``tools``, as it would be waited for at every library.
    """
    problem: Optional[str] = None
    for tool in list(tools):
        # Files take the answer instead of pipes: a pipe would be waited for as long as any child of the tool holds it.
        with tempfile.TemporaryFile() as listing, tempfile.TemporaryFile() as complaints:
            try:
                done = subprocess.run(  # pylint: disable=ansible-bad-function  # run_command has no time limit
                    [tool, "--list-elf", "--list-ptx", os.path.abspath(path)],
                    stdin=subprocess.DEVNULL,
                    stdout=listing,
                    stderr=complaints,
                    timeout=ANSWER_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                problem = f"{tool} did not answer within {ANSWER_SECONDS} s"
                tools.remove(tool)
                continue
            except OSError as error:
                problem = f"{tool}: {error.strerror}"
                continue
            said, complained = _text(listing), _text(complaints)
        matches = [LINE.fullmatch(line.rstrip()) for line in said.splitlines()]
        if done.returncode == 0 and any(matches):
            return {Image(parse_architecture(match[2]), match[1] == "PTX") for match in matches if match}
        problem = f"{tool} lists nothing: {' '.join((complained or said).split())[:200]}"
    raise CuobjdumpError(
        problem or "there is no cuobjdump that answers, such as that of the package nvidia-cuda-cuobjdump"
    )


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MAX_ANSWER).decode("utf-8", "replace")
