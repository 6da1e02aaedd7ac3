"""Gives a verb one option for every field of a Job: the fields are the only list of options there is."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable
from typing import Any, Literal

import typer

from ..errors import InputError, Problems
from ..planning.settings import table
from ..spec.job import FromCaller

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")
# Have a form of their own on the command line, repeated: --env K=V, --input K=URL.
_OWN_FORM = ("env", "inputs")
_METAVARS = {
    "entry": "ENTRY", "workers": "N", "accelerator": "A", "project": "FOLDER", "args": "JSON", "max_steps": "N",
    "user": "N", "every_steps": "N", "keep_last": "N", "best": "METRIC", "resume_from": "RUN[@STEP]",
    "ps": "N", "disk_gb": "N", "max_cost_usd": "USD", "machine": "TYPE", "vertex_project": "ID", "vertex_regions": "R[,R]",
    "vertex_bucket": "BUCKET", "vertex_service_account": "EMAIL", "vertex_image": "URI", "vertex_labels": "JSON",
    "vertex_raw": "JSON",
    "infrastructure": "N", "preemption": "N", "include": "PATH", "exclude": "PATTERN", "requirements": "auto|none|FILE",
}  # fmt: skip


def with_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Add `--field-name` for every setting; the verb gets the given ones as its keyword `given`, texts for `read`."""

    @functools.wraps(verb)
    def wrapped(**values: Any) -> None:
        texts = {name: values.pop(name) for name in names}
        verb(**values, given={name: text for name, text in texts.items() if text is not None and text != []})

    names = [name for name in table.SETTINGS if name not in _OWN_FORM]
    # Not typing.get_type_hints: on Python 3.10 that puts Optional around an Annotated whose default is None.
    signature = inspect.signature(verb, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "given"]
    added = [_parameter(table.SETTINGS[name]) for name in names]
    wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
    return wrapped


def _parameter(setting: table.Setting) -> inspect.Parameter:
    flag = f"--{setting.name.replace('_', '-')}"
    several, switch = _repeats(setting), setting.type is bool
    option = typer.Option(
        None,
        f"{flag}/--no-{flag[2:]}" if switch else flag,
        metavar=None if switch else _metavar(setting),
        help=setting.doc.split(". ")[0].split("; ")[0].rstrip(".") + (", repeatable" if several else ""),
        show_default=False,
    )
    kind = list[str] | None if several else bool | None if switch else str | None
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)


def _repeats(setting: table.Setting) -> bool:
    return typing.get_origin(setting.type) is tuple


def _metavar(setting: table.Setting) -> str:
    choices = [part for part in _parts(setting.type) if typing.get_origin(part) is Literal]
    if choices:
        return "|".join(typing.get_args(choices[0]))
    return _METAVARS.get(setting.name, "SECONDS" if setting.name.endswith("_s") else "TEXT")


def _parts(annotation: Any) -> list[Any]:
    return [annotation, *(part for inner in typing.get_args(annotation) for part in _parts(inner))]


def read(texts: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """Return what the texts of options mean; those that mean nothing go to `problems`."""
    found: dict[str, Any] = {}
    for name, text in texts.items():
        if not isinstance(text, str):
            found[name] = text
            continue
        with problems.collect():
            try:
                found[name] = table.read(table.SETTINGS[name], text)
            except ValueError as error:
                raise InputError(f"--{name.replace('_', '-')}: {error} Received: {text!r}.") from None
    return found


def pairs(option: str, texts: list[str], problems: Problems) -> dict[str, str]:
    """Return what an option says as NAME=VALUE, repeated; what is none goes to `problems`."""
    found = {}
    for number, text in enumerate(texts, 1):
        name, equals, value = text.partition("=")
        with problems.collect():
            if not equals:
                raise InputError(f"{option} takes NAME=VALUE. Number {number} of {len(texts)} has no '='.")
            found[name] = value
    return found


def variables(texts: list[str]) -> dict[str, str | FromCaller]:
    """Return the variables of `--env NAME=VALUE`; a NAME alone stands for the caller's own value."""
    found: dict[str, str | FromCaller] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        found[name] = value if equals else FromCaller()
    return found


def duration(option: str, text: str) -> float:
    """Return the seconds that a text such as "90s", "10m" or "1h30m" means; a bare number is seconds.

    Raises:
        InputError: it means none.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise InputError(f"{option} takes a duration such as 90s, 10m, 2h or 1h30m. Received: {text!r}.")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
