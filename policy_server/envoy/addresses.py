"""Addresses as data planes write them: ``ip:port``, IPv6 in brackets."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=65_536)
def canonical(address: str) -> str | None:
    """The one spelling of an address, such as ``[fd00::1]:8080``; None where it is not an IP address and a port."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        return None
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        ip = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return None
    if bracketed != (ip.version == 6):
        return None
    return f"[{ip}]:{int(port)}" if bracketed else f"{ip}:{int(port)}"


def listed(text: str) -> Iterable[str]:
    """The addresses of a list separated by commas, blanks around them left out."""
    return (part for part in map(str.strip, text.split(",")) if part)
