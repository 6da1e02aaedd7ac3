"""The generated pages of the reference: Markdown made from signatures, docstrings, the table of settings and the command."""

from __future__ import annotations

import dataclasses
import enum
import html
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import typer

import sdk
from sdk.cli.app import build
from sdk.job import values
from sdk.job.values import Value
from sdk.planning.settings import merge, table

# What a user may import beside `sdk`, module by module.
MODULES: dict[str, tuple[str, ...]] = {
    "sdk.drill": ("run_drill", "DrillReport", "Killed", "ArrayDifference", "UnseededCall"),
    "sdk.preflight": ("preflight", "describe", "PreflightReport", "PreflightFinding", "PreflightLimits", "Layer"),
    "sdk.testing.plugin": ("podlift_run", "podlift_drill", "podlift_gcs", "podlift_vertex"),
    "sdk.testing.gcs": ("GcsServer", "Requests"),
    "sdk.testing.vertex": ("Cloud",),
    "sdk.testing.tasks": ("wait_for_step", "kill", "preempt"),
    "sdk.testing.backend": ("BackendContract",),
    "sdk.backends": ("register", "load"),
    "sdk.backends.base": ("Backend", "RunHandle", "Capabilities", "Request", "LogLine"),
    "sdk.backends.services": ("Services",),
    "sdk.job.targets": ("Target",),
    "sdk.backends.triggers": ("TriggerService", "TriggerDraft", "TriggerRequest", "Trigger", "TriggerRejectedError"),
    "sdk.backends.folder": ("FolderRun",),
    "sdk.records.timeline": ("Moment",),
    "sdk.testing.fake_backend": ("FakeBackend",),
}
SETTINGS = """Each setting is a keyword of `plan`, `submit` and the pytest fixtures (`checkpoint_every="5m"`), an option
(`--checkpoint-every 5m`), a variable (`PODLIFT_CHECKPOINT_EVERY=5m`), and a key of
[the project's file](../how-to/configure.md). In the file, settings with a group are below its table (`every` below
`[tool.podlift.checkpoint]`), the others directly below `[tool.podlift]`.

Durations read `90s`, `10m`, `2h` or `1h30m`; a bare number is seconds. `none` is None in options, variables and the file. A
keyword that is None counts as not given, unless None is a value of the setting. `env` and `inputs` have a form of their own
on the command line, repeatable: `--env NAME=VALUE`, `--env NAME` for your own value, `--input NAME=URL`.

This page is generated from the table of settings by `scripts/reference`."""
API = "Every name in `sdk.__all__`. This page is generated from the docstrings by `scripts/reference`."
BESIDE = """The names beside `sdk` that are public. Everything else is private. This page is generated from the docstrings by
`scripts/reference`."""
COMMAND = """Every command and its options. `podlift COMMAND --help` prints the same. This page is generated from the command by
`scripts/reference`.

[Exit codes](exit-codes.md) · [what `--json` prints](json.md)"""
_SECTIONS = ("Args", "Attributes", "Raises")
# What the package uses of a public class itself.
_PRIVATE = {"Plan": ("paths", "bundle", "members", "payload"), "GcsServer": ("ask",)}
# Names of types that only the package has, as a reader writes them.
_ALIASES = {
    "JsonArgs": "list | dict[str, Any]", "Env": "dict[str, str | FromCaller]", "Inputs": "dict[str, str | Path]",
    "Texts": "list[str | Path]", "Entry": "str | Path | Callable",
}  # fmt: skip


@dataclass
class Doc:
    """A docstring in the style of Google: its paragraphs, and what stands below Args, Attributes and Raises."""

    paragraphs: list[str] = field(default_factory=list)
    sections: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, str]:
        return {**self.sections.get("Args", {}), **self.sections.get("Attributes", {})}


def parse(text: str | None) -> Doc:
    doc, section, name = Doc(), "", ""
    for block in inspect.cleandoc(text or "").split("\n\n"):
        head, *rest = block.split("\n")
        if head.rstrip(":") not in _SECTIONS or not head.endswith(":"):
            doc.paragraphs.append(" ".join(line.strip() for line in block.split("\n")))
            continue
        section = head.rstrip(":")
        found = doc.sections.setdefault(section, {})
        for line in rest:
            start = re.match(r" {4}(\*{0,2}[\w, ]+): (.*)", line)
            if start:
                name = start[1]
                found[name] = start[2]
            else:
                found[name] += f" {line.strip()}"
    return doc


def prose(text: str) -> str:
    """Return a sentence of a docstring as Markdown: pages that it names become links, and it starts with a capital."""
    text = re.sub(r"docs/([\w/-]+)\.md", lambda m: f"[{m[1].split('/')[-1]}](../{m[1]}.md)", text)
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+[ ,;:.]", text) else text


def cell(text: str) -> str:
    """Return a text for a table: a bar would end the cell, and a backslash before it would be shown in code."""
    text = re.sub(r"`([^`]*\|[^`]*)`", lambda match: f"<code>{html.escape(match[1], quote=False)}</code>", text)
    return text.replace("|", "&#124;").replace("\n", " ")


def code(text: str) -> str:
    return cell(f"`{text}`") if text else ""


def rows(head: tuple[str, ...], lines: list[tuple[str, ...]]) -> list[str]:
    if not lines:
        return []
    return [
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(line)} |".replace("  |", " |") for line in lines),
    ]


def type_text(annotation: Any) -> str:
    """Return an annotation as a reader writes it."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\bOptional\[(.*)\]$", r"\1 | None", re.sub(r"\btyping\.", "", text))
    text = re.sub(r"\b(?:typing|collections\.abc|pathlib|podlift(?:\.\w+)*|sdk(?:\.\w+)*)\.", "", text)
    while True:
        plain = re.sub(r"Annotated\[((?:[^\[\],]|\[[^\[\]]*\])+)(?:, (?:[^\[\]]|\[[^\[\]]*\])*)?\]", r"\1", text)
        if plain == text:
            return re.sub(r"\b(JsonArgs|Env|Inputs|Texts|Entry)\b", lambda m: _ALIASES[m[1]], text)
        text = plain


def same_as(text: str, name: str, section: str = "Args") -> str:
    """Return what a docstring says of an argument or an error, also if it only points to another function's."""
    pointer = re.match(r"(?:as for|as in|what) `(?:sdk\.)?(\w+)`(?: takes| accepts)?(.*)$", text, re.IGNORECASE)
    if not pointer:
        return text
    if section == "Args" and name in TARGETS:
        return TARGETS[name][0]
    owner = getattr(sdk, pointer[1], None) or getattr(sdk.Run, pointer[1])
    return parse(owner.__doc__).sections.get(section, {}).get(name, text).removesuffix(".") + (pointer[2] or ".")


def heading(level: int, text: str) -> list[str]:
    return ["", f"{'#' * level} {text}", ""]


def signature(name: str, function: Callable[..., Any]) -> str:
    found = inspect.signature(function)
    parameters = [one for one in found.parameters.values() if one.name != "self" and not one.name.startswith("_")]
    short = found.replace(
        parameters=[one.replace(annotation=inspect.Parameter.empty) for one in parameters if shown(one)]
    )
    text = str(short.replace(return_annotation=inspect.Signature.empty))
    result = type_text(found.return_annotation)
    return f"{name}{text}" + (f" -> {result}" if result and result != "None" else "")


def shown(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter is for readers: those whose default is a function are for tests."""
    return not callable(parameter.default) or parameter.default is inspect.Parameter.empty


def about_function(name: str, function: Callable[..., Any], level: int) -> list[str]:
    doc = parse(function.__doc__)
    lines = [*heading(level, f"`{name}`"), "```python", signature(name, function), "```", ""]
    for paragraph in doc.paragraphs:
        lines += [prose(paragraph), ""]
    lines += rows(("Parameter", "Type", "Default", ""), list(parameters(function, doc)))
    return [*lines, *raises(doc)]


def parameters(function: Callable[..., Any], doc: Doc) -> Iterator[tuple[str, ...]]:
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self" or parameter.name.startswith("_") or not shown(parameter):
            continue
        name, default = parameter.name, parameter.default
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and (name == "settings" or "**more" in doc.arguments):
            yield "...", "", "", "Every other [setting](settings.md) is a keyword too."
            continue
        kind, about = type_text(parameter.annotation), same_as(doc.arguments.get(name, ""), name)
        if "**more" in doc.arguments and name in table.COMMON and default in (None, values.UNSET):
            # The page shows the value of a setting that nothing sets, and its whole sentence.
            about, kind = TARGETS.get(name) or (table.settings()[name].doc, KINDS[name])
            default = merge.defaults()[name]
        yield (
            code(name),
            code(kind),
            "" if default is inspect.Parameter.empty else code(repr(default)),
            cell(prose(about)),
        )


def raises(doc: Doc) -> list[str]:
    found = doc.sections.get("Raises", {})
    return rows(
        ("Raises", ""), [(code(name), cell(prose(same_as(text, name, "Raises")))) for name, text in found.items()]
    )


def members(thing: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(thing).items():
        if name in _PRIVATE.get(thing.__name__, ()):
            continue
        inner = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if not name.startswith("_") and (isinstance(inner, property) or inspect.isfunction(inner)) and inner.__doc__:
            yield name, inner


def about_class(name: str, thing: type, level: int) -> list[str]:
    # A dataclass without a docstring has one that repeats its fields.
    doc = Doc() if (thing.__doc__ or "").startswith(f"{thing.__name__}(") else parse(thing.__doc__)
    doc.sections.setdefault("Attributes", {}).update(comments(thing))
    lines = heading(level, f"`{name}`")
    bases = [base.__name__ for base in thing.__mro__[1:] if base.__module__.startswith("sdk")][:1]
    if issubclass(thing, BaseException) and bases:
        lines += [f"Subclass of `{bases[0]}`.", ""]
    for paragraph in doc.paragraphs:
        lines += [prose(paragraph), ""]
    if issubclass(thing, enum.Enum):
        return [*lines, ", ".join(code(member.value) for member in thing)]
    lines += rows(("Field", "Type", "Default", ""), list(fields(thing, doc)))
    if issubclass(thing, (Value, enum.Enum, BaseException)):
        return lines
    for inner, value in members(thing):
        short = f"{name.rpartition('.')[2]}.{inner}"
        if isinstance(value, property):
            lines += [*heading(level + 1, f"`{short}`"), *(prose(text) for text in parse(value.__doc__).paragraphs)]
        else:
            lines += about_function(short, value, level + 1)
    return lines


def fields(thing: type, doc: Doc) -> Iterator[tuple[str, ...]]:
    kinds = class_fields(thing)
    kinds |= {name: ("", "") for name in doc.arguments if name not in kinds}
    for name, (kind, default) in kinds.items():
        if not name.startswith("_"):
            yield code(name), code(kind), code(default), cell(prose(same_as(doc.arguments.get(name, ""), name)))


def comments(thing: type) -> dict[str, str]:
    """Return the comment behind each field of a class."""
    try:
        source = inspect.getsource(thing)
    except OSError:
        return {}
    return dict(re.findall(r"^    (\w+): [^#\n]*?  # (.*)$", source, re.MULTILINE))


def class_fields(thing: type) -> dict[str, tuple[str, str]]:
    if issubclass(thing, Value):
        hints, members = typing.get_type_hints(thing), {one.name: one for one in dataclasses.fields(thing)}
        # A duration is a text only as a setting; a field is a number with its unit in the name.
        kinds = {name: KINDS.get(flat_name(thing, name), "") for name in members}
        kinds = {
            name: kind.replace("str | float", "float") if name.endswith("_s") else kind for name, kind in kinds.items()
        }
        every = {"every_steps": "int | None", "every_s": "float | Literal['auto'] | None"}
        kinds |= every if "every_steps" in kinds else {}
        return {name: (kinds[name] or type_text(hints[name]), default_of(one)) for name, one in members.items()}
    if dataclasses.is_dataclass(thing):
        return {one.name: (type_text(one.type), default_of(one)) for one in dataclasses.fields(thing) if one.repr}
    return {}


def default_of(info: Any) -> str:
    value = getattr(info, "default", dataclasses.MISSING)
    factory = getattr(info, "default_factory", None)
    if factory not in (None, dataclasses.MISSING):
        value = factory()
    if value is dataclasses.MISSING or "Undefined" in repr(value):
        return ""
    return f"{type(value).__name__}()" if isinstance(value, Value) else repr(value)


def flat_name(thing: type, name: str) -> str:
    return next(
        (one.name for one in table.settings().values() if table.groups()[one.group] is thing and one.field == name), ""
    )


def about(name: str, thing: Any, level: int) -> list[str]:
    found = getattr(thing, "__wrapped__", None) or getattr(thing, "_fixture_function", thing)
    if isinstance(found, type):
        return about_class(name, found, level)
    return about_function(name, found, level)


def api() -> str:
    """Return the page of the names in `sdk.__all__`."""
    lines = [
        "# API",
        "",
        "Every name in `sdk.__all__`. This page is generated from the docstrings by `scripts/reference`.",
    ]
    for name in sdk.__all__:
        lines += about(name, getattr(sdk, name), 2)
    return finished(lines)


def modules() -> str:
    """Return the page of the other modules that are public."""
    lines = ["# Testing and other modules", "", BESIDE]
    for module, names in MODULES.items():
        found = importlib.import_module(module)
        lines += [*heading(2, f"`{module}`"), *(prose(text) + "\n" for text in parse(found.__doc__).paragraphs[:1])]
        for name in names:
            if module == "sdk.testing.plugin":
                lines += about_fixture(name, found)
            else:
                lines += about(name, getattr(found, name), 3)
    return finished(lines)


def about_fixture(name: str, module: Any) -> list[str]:
    fixture = getattr(module, name)
    doc = parse(fixture.__doc__ or getattr(fixture, "__wrapped__", fixture).__doc__)
    return [*heading(3, f"Fixture `{name}`"), *(line for text in doc.paragraphs for line in (prose(text), ""))]


def settings() -> str:
    """Return the page of the settings, a table for each group."""
    known = merge.defaults()
    lines = ["# Settings", "", SETTINGS]
    titles = {group: model.__name__ for group, model in table.groups().items()}
    groups: dict[str, list[tuple[str, ...]]] = {}
    for one in table.settings().values():
        if one.name == "entry":
            continue
        groups.setdefault(one.group, []).append(setting(one.name, KINDS[one.name], one.doc, known[one.name]))
    for group, found in groups.items():
        lines += [*heading(2, titles.get(group, group.capitalize())), *rows(("Setting", "Type", "Default", ""), found)]
    target = [setting(name, kind, about, known[name]) for name, (about, kind) in TARGETS.items()]
    lines += [*heading(2, "Where the run executes"), *rows(("Setting", "Type", "Default", ""), target)]
    return finished(lines)


def setting(name: str, kind: str, about: str, default: Any) -> tuple[str, ...]:
    return code(name), code(kind), code(repr(default)), cell(prose(about))


def command() -> str:
    """Return the page of the command: each verb with its own options."""
    group = typer.main.get_command(build())
    lines = ["# Command line", "", COMMAND]
    for name, verb in group.commands.items():  # type: ignore[attr-defined]
        lines += about_verb(name, verb)
        for inner, each in getattr(verb, "commands", {}).items():
            lines += about_verb(f"{name} {inner}", each)
    return finished(lines)


def about_verb(name: str, verb: Any) -> list[str]:
    context = verb.make_context(name, [], resilient_parsing=True)
    usage = " ".join(verb.collect_usage_pieces(context))
    lines = [
        *heading(2, f"`podlift {name}`"),
        "```text",
        f"podlift {name} {usage}",
        "```",
        "",
        prose(verb.help or ""),
        "",
    ]
    own, rest = [], 0
    for parameter in verb.get_params(context):
        if getattr(parameter, "hidden", False) or parameter.name == "help" or parameter.param_type_name != "option":
            continue
        if parameter.name in table.settings() and "--max-steps" in options_of(verb, context):
            rest += 1
            continue
        record = parameter.get_help_record(context)
        if record:
            own.append((code(record[0]), cell(prose(record[1]))))
    lines += rows(("Option", ""), own)
    return [*lines, "", "Every [setting](settings.md) is an option too."] if rest else lines


def options_of(verb: Any, context: Any) -> set[str]:
    return {word for parameter in verb.get_params(context) for word in parameter.opts}


def finished(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


# Filled by scripts/reference, which knows how the types of settings are written.
KINDS: dict[str, str] = {}
TARGETS: dict[str, tuple[str, str]] = {}


def know(kinds: Mapping[str, str], targets: Mapping[str, tuple[str, str]]) -> None:
    """Take the types of the settings, and the sentence and type of each that says where a run executes."""
    KINDS.update(kinds)
    TARGETS.update(targets)
