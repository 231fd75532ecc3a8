# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import datetime

from ansible_collections.ddtree.fleet.plugins.plugin_utils._certificates import make_pair
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def test_a_pair_is_a_certificate_signed_with_its_own_key() -> None:
    pair = make_pair("source")
    certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
    key = serialization.load_pem_private_key(pair.key.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(certificate)


def test_it_is_good_for_hosts_whose_clocks_differ_and_not_for_long() -> None:
    certificate = x509.load_pem_x509_certificate(make_pair("source").certificate.encode())
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    assert now - day - day / 24 < certificate.not_valid_before_utc <= now - day
    assert now + 2 * day - day / 24 < certificate.not_valid_after_utc <= now + 2 * day


def test_it_tells_nothing_but_the_name_it_was_given() -> None:
    certificate = x509.load_pem_x509_certificate(make_pair("source").certificate.encode())
    assert [(part.oid, part.value) for part in certificate.subject] == [(NameOID.COMMON_NAME, "source")]
    assert certificate.issuer == certificate.subject
    assert len(certificate.extensions) == 0


def test_every_pair_is_another_one() -> None:
    pairs = [make_pair("source") for _number in range(3)]
    certificates = [x509.load_pem_x509_certificate(pair.certificate.encode()) for pair in pairs]
    assert len({pair.key for pair in pairs}) == 3
    assert len({certificate.serial_number for certificate in certificates}) == 3


def test_the_key_is_not_shown_where_credentials_are() -> None:
    pair = make_pair("source")
    assert "PRIVATE" in pair.key
    assert "PRIVATE" not in repr(pair)
