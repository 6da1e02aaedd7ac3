"""The table of settings: the name, type and sentence of each, and the variables that set them (`PODLIFT_*`).

Every field of a Job, of its parts and of a backend's value is one setting, with one name everywhere: `setting_names`.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from typing import Any, Literal

from ...errors import InputError, Problems, nearest
from ...job import option_classes
from ...job.gates import Gate
from ...job.job import Job
from ...job.policies import Checkpoints, Code, Limits, Resources, Retry
from ...job.setting_names import EVERY, setting_name
from ...job.targets import Target
from ...job.values import TRUTH, Value, Written, given_fields
from ...text import compact_duration, parse_duration

PREFIX = "PODLIFT_"
TARGET = ("backend", "root", "name", "online")
# Parameters of `plan`, `submit` and `schedule` by name, so that an editor completes and explains them: the settings that
# guides and examples use most.
COMMON = (
    "args", "workers", "accelerator", "backend", "name", "root", "env", "model", "checkpoint_every", "max_steps", "timeout",
    "max_cost_usd",
)  # fmt: skip
# Not settings: set by podlift itself in the processes that it starts, or properties of this machine that change no plan.
_INTERNAL = {
    "PODLIFT_RUN", "PODLIFT_TASK", "PODLIFT_ATTEMPT", "PODLIFT_PARENT", "PODLIFT_CALLER_PYTHONPATH", "PODLIFT_TASKS",
    "PODLIFT_RESTART_CODE",
    "PODLIFT_LOADER", "PODLIFT_HOST", "PODLIFT_CORES", "PODLIFT_EMULATOR", "PODLIFT_TPU_REPLICAS", "PODLIFT_GPU_REPLICAS",
}  # fmt: skip
_STEPS = re.compile(r"(\d+)\s*steps?")
_EVERY = "must be a duration, a number of steps or both, such as 5m, 500steps or 500steps,5m; or auto or none"
_AUTO: Literal["auto"] = "auto"
_EVERY_DOC = (
    "How often to save: auto, 5m, 500steps, 500steps,5m or none. auto: as often as saves cost 1% of the time, but at least "
    "every 5 minutes, and at most every 5 s, or 30 s in a bucket. With steps and a duration, whichever comes first. With a "
    "duration alone, the end of an epoch is saved too, if that takes at most a twentieth of the time."
)


@dataclass(frozen=True)
class Setting:
    """One setting: its name, the part of the Job or the backend that it belongs to, its field there, its type, its sentence."""

    name: str
    group: str
    field: str
    type: Any
    doc: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The option."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def is_duration(self) -> bool:
        """True for a time span, which may be written as "10m"."""
        return self.field.endswith("_s") and not self.is_every

    @property
    def is_every(self) -> bool:
        """True for the one setting that sets several fields."""
        return self.field in EVERY

    @property
    def default(self) -> Any:
        """The value of the setting if nothing sets it, as a user would write it."""
        value = next(default_of(field) for field in fields(groups()[self.group]) if field.name == self.field)
        return written(self, value) if not self.is_every else _every_text(None, value)


PARTS: dict[str, type[Value]] = {
    "": Job, "resources": Resources, "checkpoints": Checkpoints, "retry": Retry, "limits": Limits, "code": Code,
    "gate": Gate,
}  # fmt: skip


def groups() -> dict[str, type[Value]]:
    """Return the parts of a Job and the options of each backend, by the name of the group."""
    return {**PARTS, **option_classes.every()}


def settings() -> dict[str, Setting]:
    """Return every setting, by its name; the settings of a backend from its registration on."""
    return _settings_of(tuple(groups().items()))


@cache
def _settings_of(groups: tuple[tuple[str, type[Value]], ...]) -> dict[str, Setting]:
    settings_by_name: dict[str, Setting] = {}
    for group, kind in groups:
        hints = typing.get_type_hints(kind)
        marked = {} if group in PARTS else typing.get_type_hints(kind, include_extras=True)
        for field in [field.name for field in fields(kind) if field.name not in PARTS]:
            name = setting_name(f"{group}.{field}")
            if name in TARGET or (name in settings_by_name and settings_by_name[name].group != group):
                raise InputError(
                    f"The backend {group!r} cannot have a setting that there is already. Received: {name}. "
                    f"Next: rename its field {field!r}."
                )
            every = field in EVERY
            # Several values that may be written as one text: "us-central1,us-east1".
            hint = str | hints[field] if str in _accepted(marked.get(field)) - _kinds(hints[field]) else hints[field]
            doc = _EVERY_DOC if every else _doc(kind, field)
            settings_by_name[name] = Setting(name, group, field, str | None if every else hint, doc)
    return settings_by_name


def _accepted(annotation: Any) -> set[Any]:
    """Return the types that a field accepts, if it accepts more than it stores."""
    marks = getattr(annotation, "__metadata__", ())
    return {kind for mark in marks if isinstance(mark, Written) for kind in _kinds(mark.type)}


def default_of(field: Field[Any]) -> Any:
    """Return the default of a dataclass's field, None if it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _doc(model: type[Value], name: str) -> str:
    """Return the description of a field in the class's docstring."""
    # Its line, and the lines below it with a deeper indent.
    match = re.search(rf"^( +){name}: (.*(?:\n\1 +.*)*)", model.__doc__ or "", re.MULTILINE)
    return " ".join(match[2].split()) if match else ""


def from_environment(environ: Mapping[str, str], problems: Problems) -> dict[str, Any]:
    """Return the settings that `PODLIFT_*` variables make, by name; `problems` takes the mistakes in them."""
    values: dict[str, Any] = {}
    by_variable = {setting.variable: setting for setting in settings().values()}
    targets = {PREFIX + name.upper(): name for name in TARGET}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in _INTERNAL:
            continue
        with problems.collect():
            if variable in targets:
                if variable == "PODLIFT_ONLINE" and text and text.lower() not in TRUTH:
                    raise InputError(f"{variable}: must be true or false. Received: {text!r}.")
                values[targets[variable]] = TRUTH.get(text.lower()) if variable == "PODLIFT_ONLINE" else text
            elif variable in by_variable:
                values[by_variable[variable].name] = _read_variable(by_variable[variable], text)
            else:
                raise InputError(f"Unknown setting {variable}. {nearest(variable, [*by_variable, *targets])}")
    return values


def _read_variable(setting: Setting, text: str) -> Any:
    try:
        return read(setting, text)
    except ValueError as error:
        # The values of variables may be secrets.
        received = "" if setting.name == "env" else f" Received: {text!r}."
        raise InputError(f"{setting.variable}: {error}{received}") from None


def read(setting: Setting, text: str) -> Any:
    """Return the value of an option's or a variable's text; ValueError if the text is not a value."""
    kinds = _kinds(setting.type)
    if type(None) in kinds and text.lower() in ("", "none", "null"):
        return None
    if setting.is_every:
        return _every_text(*_every(text))
    if setting.is_duration:
        return parse_duration(text)
    # A list or a table is written as JSON, and no text begins as one.
    is_json = (tuple in kinds and text.startswith("[")) or (dict in kinds and text.startswith("{"))
    if not is_json and kinds & {str, Literal}:
        return text
    if bool in kinds and text.lower() in TRUTH:
        return TRUTH[text.lower()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        example = '["a", "b"]' if text.startswith("[") else '{"name": 3}'
        plain = "a number" if kinds & {int, float} else f"JSON, such as {example}"
        raise ValueError(f"must be {'true or false' if bool in kinds else plain}.") from None


def _every(value: Any) -> tuple[int | None, float | Literal["auto"] | None]:
    """Return steps and seconds of "500steps,5m" or "auto"; a number is seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return None, float(value)
    steps, seconds = None, None
    parts = value.split(",") if isinstance(value, str) else [""]
    if [part.strip().lower() for part in parts] == [_AUTO]:
        return None, _AUTO
    for part in (part.strip().lower() for part in parts):
        counted = _STEPS.fullmatch(part)
        if counted and steps is None:
            steps = int(counted[1])
        elif seconds is None and not counted:
            try:
                seconds = parse_duration(part)
            except ValueError:
                raise ValueError(f"{_EVERY}.") from None
        else:
            raise ValueError(f"{_EVERY}.")
    return steps, seconds


def _every_text(steps: int | None, seconds: float | Literal["auto"] | None) -> str | None:
    if seconds == _AUTO:
        return _AUTO if steps is None else f"{steps}steps"
    parts = [] if steps is None else [f"{steps}steps"]
    return ",".join([*parts, *([] if seconds is None else [compact_duration(seconds)])]) or None


def written(setting: Setting, value: Any) -> Any:
    """Return a value as a user would write it: a time span as "10m"."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return compact_duration(value) if setting.is_duration and is_number else value


def takes_none(setting: Setting) -> bool:
    """Return whether None is a value of a setting."""
    return type(None) in _kinds(setting.type)


def _kinds(annotation: Any) -> set[Any]:
    """Return the types at the top of an annotation: `float | None` is {float, NoneType}."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return {kind for part in typing.get_args(annotation) for kind in _kinds(part)}
    return {origin or annotation}


def job(values: Mapping[str, object]) -> Job:
    """Return the Job that settings describe, without settings of backends; every mistake has its setting's name."""
    problems = Problems()
    top: dict[str, object] = {}
    for group in PARTS:
        if group:
            with problems.collect():
                top[group] = _part(group, values)
    with problems.closing():
        job_value = _part("", values, top)
    return typing.cast("Job", job_value)


def target(backend: str, values: Mapping[str, object]) -> Target:
    """Return the target that settings describe."""
    return typing.cast("Target", _part(backend, values)) if backend in groups() else Target()


def _part(group: str, values: Mapping[str, object], more: Mapping[str, object] | None = None) -> Value:
    """Return a part of a Job, the Job itself or the options of a backend, with the settings that belong to it."""
    problems = Problems()
    fields = dict(more or {})
    for setting in settings().values():
        if setting.group == group and setting.name in values:
            with problems.collect():
                fields |= _fields(setting, values[setting.name])
    with problems.closing():
        try:
            part = groups()[group](**fields)
        except InputError as error:
            raise InputError([_by_setting(sentence, group) for sentence in error.problems]) from error.__cause__
    return part


def _fields(setting: Setting, value: Any) -> dict[str, object]:
    """Return the values of the fields that a setting sets, by field."""
    try:
        # TOML has no None.
        if value == "none" and takes_none(setting) and (setting.is_every or str not in _kinds(setting.type)):
            value = None
        if setting.is_every:
            return dict(zip(EVERY, (None, None) if value is None else _every(value), strict=True))
        return {setting.field: parse_duration(value) if setting.is_duration and isinstance(value, str) else value}
    except ValueError as error:
        raise InputError(f"{setting.name}: {error} Received: {value!r}.") from None


def _by_setting(sentence: str, group: str) -> str:
    """Return a sentence about a field of a group, "hang_s: ...", as one about the setting: "limit_hang: ..."."""
    field = re.match(r"\w*", sentence)[0]  # type: ignore[index]
    name = setting_name(f"{group}.{field}")
    return name + sentence.removeprefix(field) if name in settings() and re.match(r"\w+[:.]", sentence) else sentence


def flat(job: Job) -> dict[str, object]:
    """Return the settings that were given to a Job, and only those, by name."""
    values: dict[str, object] = {}
    for setting in settings().values():
        part = job if not setting.group else given_fields(job).get(setting.group)
        if part is None:
            continue
        if setting.is_every and set(EVERY) & given_fields(part).keys():
            values[setting.name] = _every_text(*(getattr(part, field) for field in EVERY))
        elif setting.field in given_fields(part):
            values[setting.name] = getattr(part, setting.field)
    return values
