"""Command-line options made of a dataclass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import click
import pytest
from click.testing import CliRunner

from training.hyperparameters import given_hyperparameters, hyperparameter_options


@dataclass(frozen=True)
class Example:
    """Of every type that hyperparameters have."""

    seed: int = 0
    """Of everything."""
    learning_rate: float = 1e-3
    """Text over
    two lines."""
    credit: Literal["own", "team"] = "own"
    undocumented: int = 3
    load_range: tuple[float, float] = (0.6, 1.4)
    """Low and high."""
    presets: tuple[str, ...] = ("a", "b")
    """Several."""


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """What a command hands on of a command line."""
    seen: dict[str, Any] = {}

    @click.command()
    @click.option("--run")
    @hyperparameter_options(Example)
    def command(run: str | None, **values: Any) -> None:
        seen.update(given_hyperparameters(Example, {"run": run, **values}))

    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return seen


def test_what_is_not_given_is_left_out() -> None:
    assert parsed([]) == {}
    assert parsed(["--run", "x"]) == {}


def test_what_is_given_has_its_type_even_if_it_is_zero_or_the_default() -> None:
    assert parsed(["--seed", "0", "--learning-rate", "0", "--credit", "own"]) == {
        "seed": 0,
        "learning_rate": 0.0,
        "credit": "own",
    }
    given = parsed(["--load-range", "0.5", "2", "--presets", "c", "--presets", "d"])
    assert given == {"load_range": (0.5, 2.0), "presets": ("c", "d")}
    assert Example(**given).presets == ("c", "d")


@pytest.mark.parametrize(
    "arguments", [["--seed", "x"], ["--credit", "difference"], ["--load-range", "1"], ["--unknown", "1"]]
)
def test_what_has_another_type_is_refused(arguments: list[str]) -> None:
    @click.command()
    @hyperparameter_options(Example)
    def command(**values: Any) -> None:
        raise AssertionError(values)

    assert CliRunner().invoke(command, arguments).exit_code == 2


def test_help_is_the_docstring_and_the_default() -> None:
    @click.command()
    @hyperparameter_options(Example)
    def command(**values: Any) -> None:
        pass

    texts = {option.name: option.help for option in command.params if isinstance(option, click.Option)}
    assert list(texts) == ["seed", "learning_rate", "credit", "undocumented", "load_range", "presets"]
    assert texts["learning_rate"] == "Text over two lines. [default: 0.001]"
    assert texts["undocumented"] == "[default: 3]"
    assert texts["load_range"] == "Low and high. [default: 0.6 1.4]"
    assert texts["presets"] == "Several. [default: a b]"
