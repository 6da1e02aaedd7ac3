"""All settings of one call, and which source won: default < the project's file < environment < argument."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from ... import backends
from ...errors import InputError, Problems, nearest
from ...job import option_classes
from ...job.job import Job
from ...job.setting_names import setting_name
from ...job.targets import Target
from ...job.values import UNSET, Value, given_fields
from ...text import shown
from . import file as configfile
from . import table

Entry = str | Path | Callable[..., Any]
# Stands for an entry that the environment or the project's file is to name.
UNNAMED: Any = object()
# One more variable or input does not drop the others: these settings are merged name by name.
_MERGED = ("env", "inputs")
# Values about the target that are not text.
_KINDS: dict[str, type | tuple[type, ...]] = {"root": (str, PurePath), "online": bool}


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The target of a run: None for each setting that is not given."""

    backend: str | Target | None = None
    root: str | Path | None = None
    name: str | None = None
    online: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The given settings, by flat name."""

    values: Mapping[str, Any]  # of the Job and of the target, only the given ones
    origins: Mapping[str, str]  # the source: a file, a variable, "argument"
    file: str = ""  # the project's file, "" when there is none
    function: Callable[..., Any] | None = None  # the entry when it is a function, not its name
    slot_inputs: Collection[str] = ()  # names of inputs that each firing of a schedule locates

    def without(self, names: Collection[str]) -> Settings:
        """Return the settings with the defaults of these."""
        values = {name: value for name, value in self.values.items() if name not in names}
        return replace(self, values=values, origins={name: self.origins[name] for name in values})

    def sourced(self, sentences: Iterable[str]) -> list[str]:
        """Return sentences about mistakes, each with the file or the variable from which its setting comes."""
        return [" ".join([sentence, *self._sources(sentence)]) for sentence in sentences]

    def _sources(self, sentence: str) -> Iterator[str]:
        for name, origin in self.origins.items():
            is_told = origin in ("argument", "") or origin in sentence
            if not is_told and _is_about(sentence, name, self.values[name]):
                yield f"{name} comes from {origin}."

    @property
    def job(self) -> dict[str, object]:
        """The settings that make a Job."""
        names = {name for name, setting in table.settings().items() if setting.group in table.PARTS}
        return {name: value for name, value in self.values.items() if name in names}

    @property
    def target(self) -> Destination:
        """Where the run goes."""
        return Destination(**{name: self.values.get(name) for name in table.TARGET})


def _is_about(sentence: str, name: str, value: Any) -> bool:
    """True if a sentence begins with a setting's name, or quotes its value."""
    if re.match(rf"{name}\b", sentence):
        return True
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    # Of a variable of the job only its name is ever shown.
    quoted = [] if name == "env" else [repr(text) for text in values if isinstance(text, str) and text]
    return any(text in sentence for text in [*quoted, f"{name}={value!r}"])


def complaints(environ: Mapping[str, str], folder: Path) -> list[str]:
    """Return the mistakes in the variables and the project's file, for a verb that does not need all of them."""
    problems = Problems()
    variables = table.from_environment(environ, problems)
    file = configfile.find(folder, problems)
    backend = variables.get("backend") or file.values.get("backend") or "local"
    with problems.collect():
        backends.check_name(backend)
    origins = {"backend": "PODLIFT_BACKEND" if variables.get("backend") else file.source}
    return Settings(values={"backend": backend}, origins=origins).sourced(problems.messages)


def keywords_of(arguments: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings among the arguments of `plan`, `submit` or `schedule`, without the keywords that set nothing."""
    keywords = {**{name: arguments[name] for name in table.COMMON if arguments[name] is not UNSET}, **arguments["more"]}
    return {name: value for name, value in keywords.items() if value is not None or _takes_none(name)}


def from_keywords(keywords: Mapping[str, object]) -> tuple[dict[str, object], Destination]:
    """Return the flat settings and the target that the keywords of a call set."""
    settings: dict[str, Any] = dict(keywords)
    target = Destination(**{name: settings.pop(name, None) for name in table.TARGET})
    return settings, target


def _takes_none(name: str) -> bool:
    # A function of the caller passes args=None on when it has received no args.
    return name in table.settings() and name != "args" and table.takes_none(table.settings()[name])


def gather(
    what: Entry | Job,
    flat_settings: Mapping[str, object],
    target: Destination,
    environ: Mapping[str, str],
    problems: Problems,
) -> Settings:
    """Return the settings of a call: of an entry, a Job or UNNAMED, and of `flat_settings`."""
    # For a name, an empty variable counts as not set.
    of_variables = table.from_environment(environ, problems).items()
    variables = {
        name: value for name, value in of_variables if value not in (None, "") or name not in (*table.TARGET, "entry")
    }
    _refuse(what, flat_settings, target, problems)
    flat_settings = {name: value for name, value in flat_settings.items() if name in table.settings()}
    arguments = {**_arguments(what, flat_settings, problems), **_target(target, problems)}
    function = what if callable(what) else None
    start = _start(what, arguments, variables)
    file = configfile.find(start, problems)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    named = {name: table.PREFIX + name.upper() for name in variables}
    for source, label in ((file.values, file.source), (variables, ""), (arguments, "argument")):
        for name, value in source.items():
            before, origin = values.get(name), label or named[name]
            if name in _MERGED and isinstance(value, dict) and isinstance(before, dict):
                values[name], origins[name] = {**before, **value}, f"{origins[name]}, {origin}"
            else:
                values[name], origins[name] = value, origin
    return Settings(values=values, origins=origins, file=file.source, function=function)


def defaults() -> dict[str, object]:
    """Return the value of every setting that nothing sets."""
    values = {name: setting.default for name, setting in table.settings().items()}
    return {**values, "backend": "local", "root": "~/.podlift", "name": None, "online": False}


def _refuse(what: Entry | Job, flat_settings: Mapping[str, object], target: Destination, problems: Problems) -> None:
    """Report to `problems` the arguments that are no settings, or that set the same as another argument."""
    names = [name for name in (*table.settings(), *table.TARGET) if name != "entry"]
    strange = [name for name in flat_settings if name not in table.settings()]
    problems.messages += [f"Unknown setting {name!r}. {nearest(name, names)}" for name in strange]
    if what is not UNNAMED and "entry" in flat_settings:
        problems.add("entry: not as a keyword, it is the first argument.")
    backend = option_classes.backend_of(target.backend)
    if isinstance(target.backend, Value) and backend is not None:
        fields = {setting_name(f"{backend}.{field}") for field in given_fields(target.backend)}
        twice = ", ".join(name for name in flat_settings if name in fields)
        if twice:
            value = type(target.backend).__name__
            problems.add(f"{twice}: not together with backend={value}(...), which sets it too.")


def _arguments(what: Entry | Job, flat_settings: Mapping[str, object], problems: Problems) -> dict[str, object]:
    if isinstance(what, Job):
        others = {
            name: value for name, value in flat_settings.items() if table.settings()[name].group not in table.PARTS
        }
        beside = [name for name in flat_settings if name not in others]
        if beside:
            problems.add(f"{', '.join(beside)}: not together with a Job, which has fields for them.")
        return {**table.flat(what), **others}
    if isinstance(what, (str, Path)):
        return {**flat_settings, "entry": str(what)}
    if what is UNNAMED:
        return dict(flat_settings)
    if callable(what):
        return {**flat_settings, "entry": getattr(what, "__name__", type(what).__name__)}
    mistake = f"This cannot be run: {shown(what)} (a {type(what).__module__}.{type(what).__qualname__})."
    raise InputError([*problems.messages, f"{mistake} Expected a string, a path, a function or a Job."])


def _start(what: Entry | Job, arguments: Mapping[str, object], variables: Mapping[str, object]) -> Path:
    """Return the folder at which the search for the project's file starts."""
    entry = arguments.get("entry", variables.get("entry"))
    folder = arguments.get("code_project", variables.get("code_project"))
    try:
        if isinstance(folder, str) and folder:
            return Path(folder).expanduser()
        if isinstance(entry, str) and not callable(what) and os.path.lexists(path := Path(entry).expanduser()):
            return path if path.is_dir() else path.parent
        return Path.cwd()
    except (OSError, RuntimeError, ValueError):
        # The search for the entry reports mistakes in the path.
        return Path("/")


def _target(destination: Destination, problems: Problems) -> dict[str, object]:
    """Return the target that the arguments set; an empty one is reported later as a mistake."""
    settings: dict[str, object] = {}
    for name in table.TARGET:
        value = getattr(destination, name)
        backend = option_classes.backend_of(value) if name == "backend" else None
        if backend is not None:
            settings |= {setting_name(f"{backend}.{field}"): item for field, item in given_fields(value).items()}
            settings["backend"] = backend
        elif value is None:
            continue
        elif isinstance(value, _KINDS.get(name, str)):
            settings[name] = value
        elif name == "online":
            problems.add(f"online must be True or False. Received: {value!r}.")
        else:
            problems.add(f"{name} must be a text. Received: {value!r}.")
    return settings
