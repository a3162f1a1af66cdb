"""Amounts of resources as Kubernetes writes them."""

from __future__ import annotations

import re
from functools import lru_cache

LARGEST_QUANTITY = float(2**63 - 1)
"""Kubernetes caps larger amounts to this, and smaller ones to its negative."""

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_DECIMAL_EXPONENTS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_FACTORS = {f"{prefix}i": 1024.0**power for power, prefix in enumerate("KMGTPE", 1)}


class QuantityError(ValueError):
    """Text that is no quantity. The message has the text and the remedy."""


@lru_cache(maxsize=4096)
def parse_quantity(text: str) -> float:
    """The amount that a Kubernetes quantity stands for, in the unit of the resource (cores, bytes).

    The grammar of ``k8s.io/apimachinery/pkg/api/resource.Quantity``: a signed decimal number, then a decimal SI suffix
    (``n u m k M G T P E``), a binary one (``Ki Mi Gi Ti Pi Ei``), an exponent (``e3``, ``E-3``) or nothing.

    Raises:
        QuantityError: it is no quantity.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is no quantity; write a number and a suffix, such as 500m, 1.5 or 2Gi")
    suffix = match["suffix"]
    factor = _BINARY_FACTORS.get(suffix, 1.0)
    # Left to the reading of the number, so that it is rounded once; a power of two rounds nothing.
    exponent = match["exponent"] or _DECIMAL_EXPONENTS.get(suffix, 0)
    amount = float(f"{match['number']}e{exponent}") * factor
    return max(-LARGEST_QUANTITY, min(amount, LARGEST_QUANTITY))
