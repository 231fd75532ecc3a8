# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One-time certificates, by which the two agents of one direct stream know each other."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

CLOCKS_DIFFER_BY = datetime.timedelta(days=1)
VALID_FOR = datetime.timedelta(days=2)


@dataclass(frozen=True)
class Credentials:
    """A certificate and its private key, both PEM. The key is for the memory of the control node and of one agent only."""

    certificate: str
    key: str = field(repr=False)


def make_pair(name: str) -> Credentials:
    """A new key (EC P-256) with a certificate that it has signed itself, good for one stream.

    ``name`` becomes the common name, which everybody who connects can read: a role such as ``source``, never a host.
    """
    # ansible-core needs cryptography, so it is there; streams through the relay do without it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER_BY)
        .not_valid_after(now + VALID_FOR)
        .sign(key, hashes.SHA256())
    )
    return Credentials(
        certificate.public_bytes(serialization.Encoding.PEM).decode("ascii"),
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode("ascii"),
    )
