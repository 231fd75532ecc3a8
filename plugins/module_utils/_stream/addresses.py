# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The addresses of this host by which others may reach it."""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import socket
import struct
from typing import Iterator, List, Tuple

SIOCGIFCONF = 0x8912
IFREQ = struct.Struct("16s4x4s16x")
UNUSABLE_IPV6 = 0x08 | 0x20 | 0x40  # duplicate, deprecated, tentative


def addresses() -> List[str]:
    """The addresses by which other hosts may reach this one, those of the fastest interface first, IPv4 before IPv6.

    It does not matter when one of them is good for nothing: who connects there and finds somebody else tries the next.
    """
    found = [(name, text) for name, text in (*_ipv4_addresses(), *_ipv6_addresses()) if _may_be_reached(name, text)]
    return list(dict.fromkeys(text for _name, text in sorted(found, key=lambda item: -_speed(item[0]))))


def _ipv4_addresses() -> Iterator[Tuple[str, str]]:
    buffer = array.array("B", bytes(IFREQ.size * 1024))
    start, size = buffer.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, SIOCGIFCONF, struct.pack("iL", size, start))
    used = struct.unpack("iL", answer)[0]
    for name, packed in IFREQ.iter_unpack(bytes(buffer[:used])):
        interface = name.rstrip(b"\0").decode().partition(":")[0]
        yield interface, socket.inet_ntop(socket.AF_INET, packed)


def _ipv6_addresses() -> Iterator[Tuple[str, str]]:
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as lines:
        for line in lines:
            digits, _index, _prefix, _scope, flags, interface = line.split()
            if not int(flags, 16) & UNUSABLE_IPV6:
                yield interface, str(ipaddress.IPv6Address(bytes.fromhex(digits)))


def _may_be_reached(interface: str, text: str) -> bool:
    address = ipaddress.ip_address(text)
    if address.is_loopback or address.is_link_local or address.is_unspecified:
        return False
    return _sys(interface, "operstate") in ("up", "unknown", "")


def _speed(interface: str) -> int:
    """Mbit/s; 0 when it is not known."""
    text = _sys(interface, "speed")
    return max(0, int(text)) if text.lstrip("-").isdigit() else 0


def _sys(interface: str, name: str) -> str:
    with contextlib.suppress(OSError), open(f"/sys/class/net/{interface}/{name}", encoding="ascii") as file:
        return file.read().strip()
    return ""
