# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded replies, and a server that replays them as the process of one unit, for tests of the server gate."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Tuple

from ansible_collections.ddtree.fleet.plugins.module_utils._sglang import replies
from ansible_collections.ddtree.fleet.plugins.module_utils._sglang.replies import Generation, Reply
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

TESTS = Path(__file__).resolve().parents[1]
RECORDED = TESTS / "recorded"
KEY = "CANARY-5f1d"


class Server:
    """One replaying server as the process of one unit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: Any = None
        self.port = 1  # where nothing listens

    def start(self, recorded: str, *flags: str, **unit: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        program = TESTS / "replay" / "replay_server.py"
        arguments = [sys.executable, str(program), str(TESTS / "recorded" / recorded), "--port", str(self.port), *flags]
        environment = {**os.environ, **({"SGLANG_SIMULATE_ACC_LEN": "3"} if unit.pop("simulated", "") else {})}
        with (self.folder / "journal").open("w") as journal:
            self.process = subprocess.Popen(arguments, stdout=journal, stderr=journal, env=environment)
        self.describe(**unit)
        deadline = time.monotonic() + 10
        while self.process.poll() is None and time.monotonic() < deadline:
            if "listening on" in (self.folder / "journal").read_text():
                break
            time.sleep(0.02)

    def describe(self, **unit: str) -> None:
        values = {"pid": str(self.process.pid if self.process else os.getpid()), **unit}
        (self.folder / "next").write_text("".join(f"{name}='{value}'\n" for name, value in values.items()))
        (self.folder / "next").replace(self.folder / "unit")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def certificate(folder: Path) -> Tuple[Path, Path]:
    """A certificate for 127.0.0.1 that it has signed itself, and the same with its key: two PEM files in ``folder``."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "replayed")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    public, both = folder / "certificate.pem", folder / "with-key.pem"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    both.write_bytes(
        public.read_bytes()
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return public, both


def failed(result: Dict[str, Any]) -> Dict[str, str]:
    """What the failed checks of a result found, by name."""
    return {check["name"]: str(check["found"]) for check in result["checks"] if not check["passed"]}


def recorded(folder: str, name: str = "generate", number: int = 0, **changes: Any) -> Reply:
    body = json.loads((RECORDED / folder / f"{name}.json").read_text())
    body.update(changes)
    kind = "generate" if name.startswith("generate") else name
    return Reply(kind, 200, "application/json", body, json.dumps(body)[:300], "", 0.5, number)


def generation(folder: str, name: str = "generate", number: int = 0, **meta: Any) -> Generation:
    reply = recorded(folder, name, number)
    reply.json["meta_info"].update(meta)
    made = replies.generation(reply)
    assert made is not None
    return made
