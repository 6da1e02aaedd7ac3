"""Gives a verb one option for every field of a Job: the fields are the only list of options there is."""

from __future__ import annotations

import functools
import inspect
import os
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import typer

from ..errors import InputError, Problems
from ..job.job import FromCaller
from ..job.secrets import Secret
from ..job.targets import options_of
from ..planning.settings import table
from ..planning.settings.merge import UNNAMED, Destination
from .help import panel_of, show_all
from .parameters import Env, Inputs, Secrets

# Have a form of their own on the command line, repeated: --env K=V, --input K=URL.
_OWN_FORM = ("env", "inputs")
_METAVARS = {
    "entry": "ENTRY", "args": "JSON", "workers": "N", "accelerator": "NAME", "ps": "N", "max_steps": "N", "max_cost_usd": "USD",
    "checkpoint_every": "EVERY", "checkpoint_keep_last": "N", "checkpoint_best": "METRIC",
    "checkpoint_resume_from": "RUN[@STEP]",
    "retry_user_errors": "N", "retry_infrastructure": "N", "retry_preemptions": "N|none",
    "code_project": "FOLDER", "code_include": "PATH", "code_exclude": "PATTERN", "code_requirements": "auto|none|FILE",
    "model": "NAME", "gate_evaluate": "MODULE:FUNCTION", "gate_data": "INPUT", "gate_metric": "METRIC",
    "gate_min_gain": "GAIN", "gate_guards": "GUARD", "gate_ask_below": "GAIN",
}  # fmt: skip


@dataclass(frozen=True)
class CommandLine:
    """The words and options of a command that starts a program, as text."""

    words: list[str]
    env: list[str]
    secrets: list[str]
    inputs: list[str]
    texts: dict[str, object]
    target: Destination

    @property
    def is_plan(self) -> bool:
        return bool(self.words) and self.words[0].endswith(".json")

    @property
    def words_and_options(self) -> list[str]:
        """The words, and the options about a job."""
        return [*self.words, *self.env, *self.secrets, *self.inputs, *self.texts]

    def settings(self, problems: Problems) -> tuple[Any, dict[str, object]]:
        """Return the entry and the settings; mistakes go to `problems`."""
        texts = dict(self.texts)
        entry, argv = _entry(cast("str | None", texts.pop("entry", None)), self.words)
        settings = read(texts, problems)
        with problems.collect():
            if argv and "args" in texts:
                raise InputError("--args and words after -- are two ways to give arguments: use one.")
        if self.env:
            settings["env"] = variables(self.env)
        if self.secrets:
            settings["env"] = {**settings.get("env", {}), **_secrets(self.secrets, problems)}  # type: ignore[dict-item]
        if self.inputs:
            settings["inputs"] = pairs("--input", self.inputs, problems)
        if argv:
            settings["args"] = argv
        return entry or UNNAMED, settings


def _secrets(texts: list[str], problems: Problems) -> dict[str, Secret]:
    secrets = {}
    for name, resource in pairs("--secret", texts, problems).items():
        with problems.collect():
            secrets[name] = Secret(resource)
    return secrets


def _entry(option: str | None, words: list[str]) -> tuple[str | None, list[str]]:
    """Return the entry and the program's argv: the entry is the first word unless an option or variable names it."""
    named = option or os.environ.get(table.settings()["entry"].variable)
    if named:
        return named, words
    return (words[0], words[1:]) if words else (None, [])


def with_settings(*, words: Any, **target: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option for every setting, and for the target: the verb gets all of them as its keyword `command`."""
    names = [name for name in table.settings() if name not in _OWN_FORM]

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def wrapped(**values: Any) -> None:
            values.pop("help_all")
            texts = {name: values.pop(name) for name in names}
            command = CommandLine(
                words=values.pop("words") or [],
                env=values.pop("env") or [],
                secrets=values.pop("secrets") or [],
                inputs=values.pop("inputs") or [],
                texts={name: text for name, text in texts.items() if text is not None and text != []},
                target=Destination(**{name: values.pop(name) for name in target}),
            )
            verb(command=command, **values)

        # Not typing.get_type_hints: on Python 3.10 that puts Optional around an Annotated with the default None.
        signature = inspect.signature(verb, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "command"]
        shared = {"words": words, **target, "env": Env, "secrets": Secrets, "inputs": Inputs}
        before = [_keyword(name, annotation, None) for name, annotation in shared.items()]
        settings = [_parameter(table.settings()[name]) for name in names]
        return _signed(wrapped, [*before, *own, _keyword("help_all", bool, _everything()), *settings])

    return decorate


def with_some(names: Sequence[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option for each of these settings: the verb gets their values as its keyword `flat_settings`."""

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def wrapped(**values: Any) -> None:
            values.pop("help_all")
            problems = Problems()
            texts = {name: text for name in names if (text := values.pop(name)) is not None and text != []}
            flat_settings = read(texts, problems)
            problems.raise_if_any()
            verb(flat_settings=flat_settings, **values)

        parameters = inspect.signature(verb, eval_str=True).parameters.values()
        own = [parameter for parameter in parameters if parameter.name != "flat_settings"]
        everything = _keyword("help_all", bool, _everything())
        return _signed(wrapped, [*own, everything, *(_parameter(table.settings()[name]) for name in names)])

    return decorate


def _everything() -> Any:
    about = "Show this message with every option, and exit."
    return typer.Option(False, "--help-all", is_eager=True, callback=show_all, help=about)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _signed(verb: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """Give a verb the signature from which typer makes its options."""
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    verb.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    verb.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return verb


def _parameter(setting: table.Setting) -> inspect.Parameter:
    flag = setting.flag
    several, switch = typing.get_origin(setting.type) is tuple, setting.type is bool
    first_sentence = setting.doc.split(". ")[0].rstrip(".") + "."
    option = typer.Option(
        None,
        f"{flag}/--no-{flag[2:]}" if switch else flag,
        metavar=None if switch else _metavar(setting),
        help=first_sentence + (" Repeatable." if several else ""),
        show_default=False,
        rich_help_panel=panel_of(setting.name, setting.group),
    )
    return _keyword(setting.name, list[str] | None if several else bool | None if switch else str | None, option)


def _metavar(setting: table.Setting) -> str:
    choices = [part for part in _parts(setting.type) if typing.get_origin(part) is Literal]
    if choices:
        return "|".join(typing.get_args(choices[0]))
    of_backend = options_of(setting.group).metavars.get(setting.field)
    return of_backend or _METAVARS.get(setting.name, "DURATION" if setting.is_duration else "TEXT")


def _parts(annotation: Any) -> list[Any]:
    return [annotation, *(part for inner in typing.get_args(annotation) for part in _parts(inner))]


def read(texts: dict[str, object], problems: Problems) -> dict[str, object]:
    """Return the values of options; texts without a meaning go to `problems`."""
    values: dict[str, object] = {}
    for name, text in texts.items():
        if not isinstance(text, str):
            values[name] = text
            continue
        with problems.collect():
            try:
                values[name] = _value(table.settings()[name], text)
            except ValueError as error:
                raise InputError(f"{table.settings()[name].flag}: {error} Received: {text!r}.") from None
    return values


def _value(setting: table.Setting, text: str) -> Any:
    # `--timeout "$LIMIT"` without that variable must not mean that there is no limit.
    if setting.is_duration and not text.strip():
        raise ValueError("must be a duration such as 90s, 10m, 2h or 1h30m.")
    return table.read(setting, text)


def pairs(option: str, texts: list[str], problems: Problems) -> dict[str, str]:
    """Return the pairs of a repeated option NAME=VALUE; other texts go to `problems`."""
    values = {}
    for number, text in enumerate(texts, 1):
        name, equals, value = text.partition("=")
        with problems.collect():
            if not equals:
                raise InputError(f"{option} takes NAME=VALUE. Number {number} of {len(texts)} has no '='.")
            values[name] = value
    return values


def variables(texts: list[str]) -> dict[str, str | FromCaller]:
    """Return the variables of `--env NAME=VALUE`; a NAME alone stands for the caller's own value."""
    parts = [text.partition("=") for text in texts]
    return {name: value if equals else FromCaller() for name, equals, value in parts}
