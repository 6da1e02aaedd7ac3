"""Settings and where they come from: default < the project's file < environment (`PODLIFT_*`) < argument.

Every field of a Job and of its values has one flat name, which is its keyword, its option (`--field-name`) and its
variable (`PODLIFT_FIELD_NAME`). Those of a backend's value begin with the backend's name: `vertex_project`.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from ...errors import InputError, Problems, nearest
from ...spec.job import Job
from ...spec.policies import Checkpoints, Code, Limits, Resources, Retry, Vertex

PREFIX = "PODLIFT_"
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
TARGET = ("backend", "root", "name", "online")
# Set by podlift itself in the processes that it starts; no settings.
_INTERNAL = {"PODLIFT_RUN", "PODLIFT_TASK", "PODLIFT_ATTEMPT", "PODLIFT_PARENT", "PODLIFT_CALLER_PYTHONPATH"}
# Of a container on Vertex AI.
_INTERNAL |= {"PODLIFT_TASKS"}
# Where the cloud is emulated: it belongs to the machine, as the addresses of proxies do, and to no run.
_INTERNAL |= {"PODLIFT_EMULATOR"}
# How many replicas the stand-in for a TPU has on this machine: it changes no plan.
_INTERNAL |= {"PODLIFT_TPU_REPLICAS"}


@dataclass(frozen=True)
class Setting:
    """One field: its flat name, the group it belongs to ("" for the Job itself), its name there, its type, its sentence."""

    name: str
    group: str
    field: str
    type: Any
    doc: str

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()


GROUPS: dict[str, type[BaseModel]] = {
    "": Job, "resources": Resources, "code": Code, "limits": Limits, "retry": Retry,
    "checkpoints": Checkpoints, "vertex": Vertex,
}  # fmt: skip
# Values of backends: no part of the Job.
BACKENDS = ("vertex",)


def _settings() -> dict[str, Setting]:
    found = {}
    for group, model in GROUPS.items():
        for name, info in model.model_fields.items():
            if not (isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)):
                flat_name = f"{group}_{name}" if group in BACKENDS else name
                found[flat_name] = Setting(flat_name, group, name, info.annotation, _doc(model, name))
    return found


def _doc(model: type[BaseModel], name: str) -> str:
    """Return what the class's docstring says about a field."""
    lines = (model.__doc__ or "").splitlines()
    start = next((i for i, line in enumerate(lines) if line.strip().startswith(f"{name}: ")), None)
    if start is None:
        return ""
    words = [lines[start].strip().removeprefix(f"{name}: ")]
    indent = len(lines[start]) - len(lines[start].lstrip())
    for line in lines[start + 1 :]:
        if not line.strip() or len(line) - len(line.lstrip()) <= indent:
            break
        words.append(line.strip())
    return " ".join(words)


SETTINGS = _settings()


def from_environment(environ: Mapping[str, str], problems: Problems) -> dict[str, Any]:
    """Return the settings that `PODLIFT_*` variables make, by flat name.

    Args:
        environ: the variables.
        problems: takes a sentence for each that is no setting, or holds no JSON where JSON is due.
    """
    found: dict[str, Any] = {}
    known = {setting.variable: setting for setting in SETTINGS.values()}
    targets = {PREFIX + name.upper(): name for name in TARGET}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in _INTERNAL:
            continue
        with problems.collect():
            if variable in targets:
                found[targets[variable]] = _switch(variable, text) if targets[variable] == "online" else text
            elif variable in known:
                found[known[variable].name] = _read_variable(known[variable], text)
            else:
                raise InputError(f"{variable} is no setting. {nearest(variable, [*known, *targets])}")
    return found


def _switch(variable: str, text: str) -> bool | None:
    if text and text.lower() not in _TRUTH:
        raise InputError(f"{variable}: must be true or false. Received: {text!r}.")
    return _TRUTH.get(text.lower())


def _read_variable(setting: Setting, text: str) -> Any:
    try:
        return read(setting, text)
    except ValueError as error:
        # The values of variables may be secrets.
        received = "" if setting.name == "env" else f" Received: {text!r}."
        raise InputError(f"{setting.variable}: {error}{received}") from None


def read(setting: Setting, text: str) -> Any:
    """Return the value that the words of an option or a variable mean.

    Raises:
        ValueError: they mean none.
    """
    kinds = _kinds(setting.type)
    if type(None) in kinds and text.lower() in ("", "none", "null"):
        return None
    if tuple in kinds and str in kinds:
        return json.loads(text) if text.startswith("[") else text
    if str in kinds or Literal in kinds:
        return text
    if bool in kinds and text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(
            "must be a number."
            if kinds & {int, float}
            else "must be true or false."
            if bool in kinds
            else "must be JSON."
        ) from None


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


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat settings as the Job's constructor takes them; those of backends are left out."""
    found: dict[str, Any] = {}
    for name, value in flat.items():
        group = SETTINGS[name].group
        if group in BACKENDS:
            continue
        if group:
            found.setdefault(group, {})[name] = value
        else:
            found[name] = value
    return found


def of_backend(backend: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat settings of one backend as the constructor of its value takes them."""
    known = {name: SETTINGS[name] for name in flat if name in SETTINGS}
    return {setting.field: flat[name] for name, setting in known.items() if setting.group == backend}


def flat(job: Job) -> dict[str, Any]:
    """Return the settings that were given to a Job, and only those, by flat name."""
    found: dict[str, Any] = {}
    for name in job.model_fields_set:
        value = getattr(job, name)
        if isinstance(value, BaseModel):
            found.update({inner: getattr(value, inner) for inner in value.model_fields_set})
        else:
            found[name] = value
    return found
