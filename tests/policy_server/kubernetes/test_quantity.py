from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.kubernetes.quantity import LARGEST_QUANTITY, QuantityError, parse_quantity

POWER_OF_TEN = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def exact(number: str, suffix: str) -> Fraction:
    """The amount by the definition of the suffixes, exactly."""
    amount = Fraction(number.rstrip(".") if number.endswith(".") else number)
    if suffix in BINARY:
        return amount * 1024 ** (BINARY.index(suffix) + 1)
    if suffix in POWER_OF_TEN:
        return amount * Fraction(10) ** POWER_OF_TEN[suffix]
    return amount * Fraction(10) ** int(suffix[1:])


digits = st.text("0123456789", min_size=1, max_size=20)
numbers = st.one_of(
    digits,
    st.builds("{}.".format, digits),
    st.builds(".{}".format, digits),
    st.builds("{}.{}".format, digits, digits),
)
suffixes = st.one_of(
    st.sampled_from([*POWER_OF_TEN, *BINARY]),
    st.builds("{}{}{}".format, st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 30)),
)


@given(st.sampled_from(["", "+", "-"]), numbers, suffixes)
def test_every_quantity_of_the_grammar(sign: str, number: str, suffix: str) -> None:
    amount = exact(f"{sign}{number}", suffix)
    capped = max(-LARGEST_QUANTITY, min(float(amount), LARGEST_QUANTITY))
    assert parse_quantity(f"{sign}{number}{suffix}") == capped


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("100m", 0.1),
        ("1.5", 1.5),
        ("1Gi", 2**30),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 1e18),
        ("12e6", 12e6),
        ("128974848", 128974848),
        ("129M", 129e6),
        ("123Mi", 123 * 2**20),
        ("0", 0),
        (".5Ki", 512),
        ("-2k", -2000),
        ("1e999999999999", LARGEST_QUANTITY),
        ("-1e999999999999", -LARGEST_QUANTITY),
        ("16Ei", LARGEST_QUANTITY),
        ("1e-999999999999", 0),
    ],
)
def test_examples(text: str, amount: float) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    "text",
    ["", " ", "1 ", " 1", "1 Gi", "m", ".", "-", "1.2.3", "1gi", "1K", "1KI", "0x10", "1e", "1e+", "1e1.5", "1Gi5",
     "inf", "nan", "1_000", "\u0661", "--1", "1mm", "1e3Ki"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="is no quantity; write a number and a suffix"):
        parse_quantity(text)
