"""Turns a frozen settings dataclass into a command's options: flag, then environment, then file.

    --max-num-seqs 8  >  OCTAVO_MAX_NUM_SEQS=8  >  max_num_seqs = 8 in --config FILE  >  default

A field's help is its `metadata["help"]`; its annotation says how text is read; `metadata["envvar"]`
None says that the environment is not asked.
"""

import inspect
import tomllib
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Config = TypeVar("Config")


def command_for(config_type: type[Config], run: Callable[[Config], None]) -> Callable[..., None]:
    """A typer command that reads `config_type` and runs it; bad values end with a usage error."""

    def command(**values: Any) -> None:
        values.pop("config")
        hints = typing.get_type_hints(config_type)
        for name, value in values.items():
            if isinstance(value, list) and typing.get_origin(hints[name]) is tuple:
                values[name] = tuple(value)
        try:
            config = config_type(**values)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        run(config)

    command.__doc__ = run.__doc__
    parameters = [_file_parameter(), *(_parameter(f, config_type) for f in fields(config_type))]  # type: ignore[arg-type]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def read_file(context: typer.Context, path: Path | None) -> Path | None:
    """Make a TOML file's values the defaults; unknown names are refused.

    Raises:
        typer.BadParameter: the file cannot be read, or holds a name that is no setting.
    """
    if path is None:
        return None
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(f"{path}: {error}") from error
    known = {parameter.name for parameter in context.command.params}
    unknown = sorted(set(values) - known)
    if unknown:
        raise typer.BadParameter(f"{path}: no such setting: {', '.join(unknown)}")
    context.default_map = {**(context.default_map or {}), **values}
    return path


def _file_parameter() -> inspect.Parameter:
    option = typer.Option(
        "--config", help="TOML file of settings.", callback=read_file, is_eager=True
    )
    return _keyword("config", Annotated[Path | None, option], None)


def _parameter(item: "Field[Any]", config_type: type) -> inspect.Parameter:
    kind = typing.get_type_hints(config_type)[item.name]
    if typing.get_origin(kind) is tuple:
        kind = list[typing.get_args(kind)[0]]  # type: ignore[misc]
    flag = "--" + item.name.replace("_", "-")
    option = typer.Option(
        flag if _plain(kind) is not bool else f"{flag}/--no-{flag[2:]}",
        envvar=item.metadata.get("envvar", f"OCTAVO_{item.name.upper()}"),
        help=item.metadata.get("help"),
        show_envvar=False,
    )
    default = item.default if item.default is not MISSING else inspect.Parameter.empty
    if item.default_factory is not MISSING:
        default = item.default_factory()
    if isinstance(default, tuple):
        default = list(default)
    return _keyword(item.name, Annotated[kind, option], default)


def _plain(kind: Any) -> Any:
    """The type without None."""
    if isinstance(kind, types.UnionType):
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
