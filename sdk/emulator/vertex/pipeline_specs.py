"""Reads the PipelineSpec of a pipeline job with one task that runs a container. Pure.

Source: api/v2alpha1/pipeline_spec.proto of kubeflow/pipelines (read 2026-11-23), and kfp.dsl for the placeholders. Of the
fields of the proto, these are served; others are refused, also those that Vertex AI knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..messages import Problems
from .errors import invalid, not_emulated

_WHERE = "pipeline_job.pipeline_spec"
# "{}" is a map, "[]" is repeated, "Any" any value.
_MESSAGES: dict[str, dict[str, str]] = {
    "PipelineSpec": {
        "pipelineInfo": "PipelineInfo",
        "deploymentSpec": "Deployment",
        "sdkVersion": "string",
        "schemaVersion": "string",
        "components": "Component{}",
        "root": "Component",
        "defaultPipelineRoot": "string",
    },
    "PipelineInfo": {"name": "string", "displayName": "string", "description": "string"},
    "Deployment": {"executors": "Executor{}"},
    "Executor": {"container": "Container"},
    "Container": {"image": "string", "command": "string[]", "args": "string[]", "env": "Variable[]"},
    "Variable": {"name": "string", "value": "string"},
    "Component": {"inputDefinitions": "Inputs", "dag": "Dag", "executorLabel": "string"},
    "Inputs": {"parameters": "Parameter{}"},
    "Parameter": {"parameterType": "string", "defaultValue": "Any", "isOptional": "bool", "description": "string"},
    "Dag": {"tasks": "Task{}"},
    "Task": {
        "taskInfo": "TaskInfo",
        "inputs": "TaskInputs",
        "cachingOptions": "Caching",
        "componentRef": "Reference",
    },
    "TaskInfo": {"name": "string"},
    "Caching": {"enableCache": "bool"},
    "Reference": {"name": "string"},
    "TaskInputs": {"parameters": "TaskInput{}"},
    "TaskInput": {"runtimeValue": "RuntimeValue", "componentInputParameter": "string"},
    "RuntimeValue": {"constant": "Any"},
}
_SCALARS = {"string": str, "bool": bool}
_PARAMETER = re.compile(r"\{\{\$\.inputs\.parameters\['([^']+)'\]\}\}")
_VARIABLE = re.compile(r"\{\{\$\.([a-z_]+)\}\}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,126}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class ContainerTask:
    """The only task of a pipeline. Its inputs may hold placeholders."""

    pipeline: str
    name: str
    container: Mapping[str, Any]
    inputs: Mapping[str, Any]

    def resolved(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """Return the container with the values of its placeholders; `variables` are those of the pipeline job."""
        inputs = {name: _filled(value, variables) for name, value in self.inputs.items()}

        def text(value: str) -> str:
            return str(_filled(_PARAMETER.sub(lambda found: _shown(inputs[found[1]]), value), variables))

        container = {name: [text(each) for each in self.container.get(name, [])] for name in ("command", "args")}
        env = [{"name": each["name"], "value": text(each.get("value", ""))} for each in self.container.get("env", [])]
        return {"imageUri": self.container["image"], **container, **({"env": env} if env else {})}


def read(spec: Any, values: Mapping[str, Any]) -> ContainerTask:
    """Return the task of a PipelineSpec; `values` are the runtime parameters."""
    problems: Problems = []
    _check("PipelineSpec", spec, _WHERE, problems)
    if problems:
        raise invalid(problems)
    info, root, executors = spec.get("pipelineInfo", {}), spec.get("root", {}), spec.get("deploymentSpec", {})
    tasks = root.get("dag", {}).get("tasks", {})
    if len(tasks) > 1:
        raise not_emulated(f"pipelines of {len(tasks)} tasks")
    if not _NAME.fullmatch(info.get("name", "")):
        problems.append((f"{_WHERE}.pipeline_info.name", f"Invalid pipeline name: {info.get('name', '')!r}."))
    if spec.get("schemaVersion") != "2.1.0":
        raise not_emulated(f"PipelineSpecs of schema version {spec.get('schemaVersion')!r} (known: '2.1.0')")
    (name, task), *_ = tasks.items() or [("", {})]
    component = spec.get("components", {}).get(task.get("componentRef", {}).get("name", ""), {})
    container = executors.get("executors", {}).get(component.get("executorLabel", ""), {}).get("container", {})
    if not container.get("image"):
        problems.append((f"{_WHERE}.root.dag.tasks", "No task runs a container with an image."))
    if task.get("cachingOptions", {}).get("enableCache"):
        raise not_emulated("caches of tasks: cachingOptions.enableCache has to be false")
    given = {**_defaults(root), **values}
    problems += _mismatches("runtime_config.parameter_values", values, _parameters(root), root)
    inputs = {key: _value(each, given, key, problems) for key, each in _inputs_of(task).items()}
    problems += _mismatches(f"inputs of the task {name}", inputs, _parameters(component), component)
    used = set(_PARAMETER.findall(json.dumps(container))) - set(inputs)
    problems += [(_WHERE, f"The container uses the parameter {each!r}, which its task does not have.") for each in used]
    if problems:
        raise invalid(problems)
    return ContainerTask(
        pipeline=info["name"], name=name, container=container, inputs={**_defaults(component), **inputs}
    )


def _check(kind: str, value: Any, path: str, problems: Problems) -> None:
    """Add what is wrong with a value of this kind."""
    if kind.endswith("{}") and isinstance(value, dict):
        for name, each in value.items():
            _check(kind[:-2], each, f"{path}[{name}]", problems)
        return
    if kind.endswith("[]") and isinstance(value, list):
        for number, each in enumerate(value):
            _check(kind[:-2], each, f"{path}[{number}]", problems)
        return
    if kind == "Any" or isinstance(value, _SCALARS.get(kind, ())):
        return
    if kind in _MESSAGES and isinstance(value, dict):
        for name, each in value.items():
            known = _MESSAGES[kind].get(name)
            if known is None:
                # Nearly always one of the many fields that Vertex AI knows, and never one that it refuses with these words.
                raise not_emulated(f"the field {json.dumps(name)[:100]} at '{path}' of a PipelineSpec")
            _check(known, each, f"{path}.{name}", problems)
        return
    problems.append((path, f"Invalid value at '{path}' ({kind}), {json.dumps(value)[:100]}"))


def _parameters(component: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = component.get("inputDefinitions", {}).get("parameters", {})
    return found


def _defaults(component: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each["defaultValue"] for name, each in _parameters(component).items() if "defaultValue" in each}


def _inputs_of(task: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = task.get("inputs", {}).get("parameters", {})
    return found


def _mismatches(
    where: str, given: Mapping[str, Any], known: Mapping[str, Any], component: Mapping[str, Any]
) -> Problems:
    found = [(where, f"The parameter {name!r} of the {where} is not defined.") for name in given if name not in known]
    there = {*given, *_defaults(component), *(name for name, each in known.items() if each.get("isOptional"))}
    return found + [
        (where, f"The parameter {name!r} is missing in the {where}.") for name in known if name not in there
    ]


def _value(given: Mapping[str, Any], values: Mapping[str, Any], name: str, problems: Problems) -> Any:
    """Return the value of an input of the task."""
    if "componentInputParameter" not in given:
        return given.get("runtimeValue", {}).get("constant", "")
    source = given["componentInputParameter"]
    if source not in values:
        problems.append((_WHERE, f"The input {name!r} is the parameter {source!r}, which the pipeline does not have."))
    return values.get(source, "")


def _filled(value: Any, variables: Mapping[str, str]) -> Any:
    """Return a value with the pipeline's variables; a placeholder that is none of them stays as it is."""
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), value)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
