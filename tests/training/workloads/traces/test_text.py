from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.workloads.traces.errors import TraceError
from training.workloads.traces.text import NumberColumn, read_text, split_rows

Write = Callable[..., Path]


@pytest.mark.parametrize(
    "content", [b"a,b\nc,d\n", b"a,b\r\nc,d\r\n", b"\xef\xbb\xbfa,b\nc,d\n", b"a,b\rc,d", b"a,b\nc,d\n\n"]
)
def test_line_ends_and_byte_order_mark_do_not_matter(write: Write, content: bytes) -> None:
    assert read_text(write(content)).lines == ["a,b", "c,d"]


def test_what_was_normalised_is_noted(write: Write) -> None:
    assert read_text(write(b"a\nb\n")).notes == ()
    assert read_text(write(b"\xef\xbb\xbfa\r\nb")).notes == (
        "byte order mark removed",
        "carriage returns taken as line ends",
        "no line end after the last line, which may be cut short",
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "empty file"),
        (b"\n\r\n \n", "empty file"),
        (b"\xef\xbb\xbf", "empty file"),
        ("1,2\n".encode("utf-16"), "null bytes"),
        (b"\x89PNG\r\n\x1a\n\0\0", "null bytes"),
    ],
)
def test_what_is_no_text_is_refused(write: Write, content: bytes, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_text(write(content))


def test_a_missing_file_and_a_folder_are_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent: cannot be read: No such file .*POLICY_TRACES"):
        read_text(tmp_path / "absent")
    with pytest.raises(TraceError, match="cannot be read: Is a directory"):
        read_text(tmp_path)


def test_rows_of_another_width_are_told_apart(write: Write) -> None:
    cells, problems = split_rows(read_text(write("1,2\n\n3\n4,5,6\n7,8\n9")), 0, 2)
    assert cells == [("1", "", "", "", "7", ""), ("2", "", "", "", "8", "")]
    assert {reason: np.flatnonzero(rows).tolist() for reason, rows in problems.items()} == {
        "blank line": [1],
        "truncated last line": [5],
        "not 2 columns": [2, 3],
    }


def test_a_short_last_line_with_its_line_end_is_not_called_truncated(write: Write) -> None:
    _, problems = split_rows(read_text(write("1,2\n9\n")), 0, 2)
    assert problems["not 2 columns"].tolist() == [False, True]
    assert not problems["truncated last line"].any()


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("x", "not a number"),
        ("1_0", "not a number"),
        ("0x10", "not a number"),
        ("1,5", "not a number"),
        ("�", "not a number"),
        ("nan", "not finite"),
        ("inf", "not finite"),
        ("-Infinity", "not finite"),
        ("1e999", "not finite"),
        ("-1", "below 0"),
        ("100.5", "above 100"),
        ("2.5", "not a whole number"),
    ],
)
def test_each_bad_cell_is_named_by_its_problem(cell: str, problem: str) -> None:
    values, problems = NumberColumn("c", maximum=100, whole=True).parse(["1", cell, " 3 "])
    np.testing.assert_array_equal(values, [1.0, np.nan, 3.0])
    assert {reason: rows.tolist() for reason, rows in problems.items()} == {
        f"c: {problem}": [False, True, False]
    }


@given(
    st.lists(
        st.one_of(
            st.floats(-10, 200).map(repr),
            st.integers(-5, 150).map(str),
            st.text(max_size=4),
            st.sampled_from(["", " ", "nan", "inf", "1_0", "1e400"]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_a_column_is_parsed_like_each_cell_alone(cells: list[str]) -> None:
    column = NumberColumn("c", maximum=100, minimum=1, whole=True)
    values, problems = column.parse(cells)
    bad = np.zeros(len(cells), dtype=np.int64)
    for rows in problems.values():
        bad += rows
    assert bad.max() <= 1
    for row, cell in enumerate(cells):
        try:
            expected = float(cell) if "_" not in cell else float("nan")
        except ValueError:
            expected = float("nan")
        if not (1 <= expected <= 100 and expected == int(expected)):
            expected = float("nan")
        assert bad[row] == np.isnan(expected)
        np.testing.assert_equal(values[row], expected)
