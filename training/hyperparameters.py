"""Command-line options from a dataclass of hyperparameters, so that every switch exists once."""

from __future__ import annotations

import ast
import inspect
import shlex
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def hyperparameter_options(config: type) -> Callable[[CommandT], CommandT]:
    """A decorator that adds one option per field of a dataclass; help texts are the fields' docstrings.

    Values that are not given arrive as None, so that a resumed run keeps its own.
    """

    def decorate(command: CommandT) -> CommandT:
        types = get_type_hints(config)
        texts = _field_docstrings(config)
        for column in reversed(fields(config)):
            help_text = texts.get(column.name, "")
            command = click.option(
                f"--{column.name.replace('_', '-')}",
                column.name,
                type=_parameter_type(types[column.name]),
                multiple=_is_list(types[column.name]),
                default=None,
                help=f"{help_text} [default: {_shown(column.default)}]",
            )(command)
        return command

    return decorate


def given_hyperparameters(config: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters among parsed arguments that were given on the command line."""
    names = {column.name for column in fields(config)}
    return {name: value for name, value in arguments.items() if name in names and value not in (None, ())}


def command_line(
    words: Sequence[str], config: DataclassInstance, *, unlike: DataclassInstance | None = None
) -> str:
    """A command line with every hyperparameter that differs from its default.

    Args:
        words: of the command, to which the options are added.
        config: a dataclass all of whose fields have defaults.
        unlike: hyperparameters to compare with in place of the defaults.
    """
    types = get_type_hints(type(config))
    line = list(words)
    for column in fields(config):
        value = getattr(config, column.name)
        if value == (column.default if unlike is None else getattr(unlike, column.name)):
            continue
        option = f"--{column.name.replace('_', '-')}"
        if _is_list(types[column.name]):
            for item in value:
                line += [option, str(item)]
        else:
            line += [option, *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join(line)


def _parameter_type(annotation: Any) -> Any:
    if get_origin(annotation) is Literal:
        return click.Choice(get_args(annotation))
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)
        return inner[0] if inner[-1] is Ellipsis else click.Tuple(list(inner))
    return annotation


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple and get_args(annotation)[-1] is Ellipsis


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _field_docstrings(config: type) -> dict[str, str]:
    """Texts of the string literals that follow the fields of a dataclass."""
    body = ast.parse(inspect.getsource(config)).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    name = None
    for statement in body.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif name and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            texts[name] = " ".join(str(statement.value.value).split())
            name = None
        else:
            name = None
    return texts
