# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a unit's server answers, and whether it is healthy."""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from typing import Dict, List, Optional, Sequence

from ansible_collections.ddtree.fleet.plugins.module_utils._service import units
from ansible_collections.ddtree.fleet.plugins.module_utils._service.units import Unit

DEFAULT_PORT = 30000
PROBE_SECONDS = 10
PAUSE_SECONDS = 2.0


def address(unit: Unit) -> str:
    """``HOST:PORT`` that the unit's command line names, or SGLang's own; empty when it is not known."""
    command = unit.commands[-1] if unit.commands else ""
    host, port = _flag(command, "host") or "127.0.0.1", _flag(command, "port")
    if not port and "sglang.launch_server" in command:
        port = str(DEFAULT_PORT)
    if not port.isdigit() or "$" in host:
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def server(unit: Unit) -> str:
    """The URL of a unit's server as the host itself reaches it; empty when that is not known."""
    place = address(unit)
    if not place:
        return ""
    host, _colon, port = place.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
    scheme = "https" if _flag(unit.commands[-1], "ssl-certfile") else "http"
    return f"{scheme}://{host}:{port}"


def _flag(command: str, name: str) -> str:
    found = re.findall(rf"--{name}[= ]([^\s;]+)", command)
    return str(found[-1]) if found else ""


def wait(stem: str, names: Sequence[str], seconds: float) -> List[str]:
    """Wait until the servers of units are healthy; gives what is wrong when they are not by then. Probes one at a time, slowly."""
    deadline = time.monotonic() + seconds
    while True:
        found = units.look(stem, names)
        problems = {name: _problem(found.get(name)) for name in names}
        wrong = [f"{name}: {problem}" for name, problem in problems.items() if problem]
        if not wrong or time.monotonic() >= deadline or _hopeless(found, names):
            return wrong
        time.sleep(min(PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))


def _hopeless(found: Dict[str, Unit], names: Sequence[str]) -> bool:
    return all(name not in found or found[name].down for name in names)


def _problem(unit: Optional[Unit]) -> str:
    if unit is None or not unit.up:
        return unit.ending() if unit else "systemd knows no such unit"
    place = server(unit) and f"{server(unit)}/health"
    if not place:
        return ""  # nobody says where it answers; that it runs is all there is to see
    # A health check of the host's own server: no proxy, and a certificate is made for the name that clients use.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(place, timeout=PROBE_SECONDS) as answer:
            return "" if answer.status == 200 else f"{place} answers {answer.status}"
    except urllib.error.HTTPError as error:
        return f"{place} answers {error.code}"
    except (OSError, http.client.HTTPException) as error:
        return f"{place}: {getattr(error, 'reason', None) or error}"
