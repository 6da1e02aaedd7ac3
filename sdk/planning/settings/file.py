"""A project's own settings: `[tool.podlift]` in its pyproject.toml, or a podlift.toml beside it."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InputError, Problems, nearest
from ...job.setting_names import table_of, tables
from ...job.targets import options_of
from ...packaging import project
from ...storage.paths import usable
from . import table as config

_FILE, _TABLE = "podlift.toml", "[tool.podlift]"


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """The content of a project's file."""

    source: str = ""  # the file, as messages name it; "" when there is no file
    values: Mapping[str, Any] = field(default_factory=dict)  # settings by name; backend, root and name among them


def find(start: Path, problems: Problems) -> FileSettings:
    """Return the settings of the nearest project at or above a folder; `problems` takes the mistakes in the file."""
    with problems.collect(), usable("The folder", start):
        folder = start.resolve()
        while folder.is_dir() and (home := project.above(folder)) is not None:
            settings = _of(home, problems)
            if settings.source:
                return settings
            folder = home.parent
    return FileSettings()


def _of(home: Path, problems: Problems) -> FileSettings:
    """Return the settings of one project's folder."""
    own, table = project.read_toml(home / _FILE), None
    pyproject = project.read_toml(home / "pyproject.toml")
    tool = pyproject.get("tool")
    if isinstance(tool, dict):
        table = tool.get("podlift")
    problems.messages += _unread(home, pyproject)
    there = (home / _FILE).exists()
    if there and table is not None:
        raise InputError(
            f"Settings stand in two places: {str(home / _FILE)!r}, and {_TABLE} in its pyproject.toml. Use one."
        )
    if not there and table is None:
        return FileSettings()
    source = str(home / _FILE) if there else f"{_TABLE} in {home / 'pyproject.toml'!s}"
    contents = own if there else table
    if not isinstance(contents, dict):
        raise InputError(f"{source} is not a table. Received: {contents!r}.")
    return FileSettings(source=source, values=_values(contents, source, home, problems))


def _unread(home: Path, pyproject: Mapping[str, object]) -> list[str]:
    """Return a sentence for each table that has a name like podlift's, but is not read."""
    tool = pyproject.get("tool")
    tables = {f"[{name}]": name for name in pyproject if name != "tool"}
    tables |= {f"[tool.{name}]": name for name in (tool if isinstance(tool, dict) else ()) if name != "podlift"}
    wrong = [table for table, name in tables.items() if re.sub(r"[-_.\s]", "", name).lower() == "podlift"]
    return [f"{str(home / 'pyproject.toml')!r}: {table} is not read. Did you mean {_TABLE}?" for table in wrong]


def _values(contents: Mapping[str, object], source: str, home: Path, problems: Problems) -> dict[str, object]:
    names = [*config.settings(), *config.TARGET]
    values = {}
    for table, key, value in _entries(contents):
        name = f"{table}_{key}" if table else key
        if name not in names or table_of(name)[0] != table:
            mistake = _unknown(table, key, value)
            problems.add(f"{source}: {mistake if source.startswith(_TABLE) else _at_top(mistake)}")
        elif isinstance(value, (datetime.date, datetime.time)):
            problems.add(f"{source}: {_key(name)} is a date. No setting accepts one.")
        elif name == "online" and not isinstance(value, bool):
            problems.add(f"{source}: online must be true or false. Received: {value!r}.")
        elif name in config.TARGET and name != "online" and not isinstance(value, str):
            problems.add(f"{source}: {name} must be a text. Received: {value!r}.")
        else:
            values[name] = _placed(name, value, home)
    return values


def _entries(contents: Mapping[str, object]) -> Iterator[tuple[str, str, Any]]:
    """Yield the table, "" for the top, the key and the value of each setting."""
    for key, value in contents.items():
        name = key.replace("-", "_")
        if name in tables() and isinstance(value, dict):
            yield from ((name, inner.replace("-", "_"), item) for inner, item in value.items())
        else:
            yield "", name, value


def _key(name: str) -> str:
    """Return how a setting is named in the file: "checkpoint.every"."""
    return ".".join(filter(None, table_of(name)))


def _unknown(table: str, key: str, value: Any) -> str:
    """Return a sentence about a key that is not a setting there, with the correct key."""
    written = f"{table}.{key}" if table else key
    if key in config.settings() or key in config.TARGET:
        return f"{written} is written differently in the file: {_where(key)}."
    if not table and key == "tool":
        return f"Unknown setting tool. In a {_FILE} the settings stand at the top, without {_TABLE}."
    if not table and key in tables():
        return f"{key} is a table of settings. Received: {value!r}."
    if advice := options_of(table).instead.get(key):
        return f"Unknown setting {written}. Next: {advice} below [tool.podlift.{table}]."
    names = [_key(name) for name in (*config.settings(), *config.TARGET)]
    if isinstance(value, dict):
        names = list(tables())
    return f"Unknown setting {written}. {nearest(written, names)}"


def _at_top(sentence: str) -> str:
    """Change a sentence about tables of a pyproject.toml into one about tables of a podlift.toml."""
    return sentence.replace("[tool.podlift.", "[").replace("directly below [tool.podlift]", "at its top")


def _where(name: str) -> str:
    """Return the key and the table of a setting: "every below [tool.podlift.checkpoint]"."""
    table, key = table_of(name)
    return f"{key} below [tool.podlift.{table}]" if table else f"{key} directly below {_TABLE}"


def _placed(name: str, value: Any, home: Path) -> Any:
    """Return a value with paths that start at the file's folder instead of the current one."""
    if name in ("code_project", "root") and isinstance(value, str) and "://" not in value:
        return str(home / Path(value).expanduser())
    if name == "entry" and isinstance(value, str) and (home / value).exists():
        return str(home / value)
    if name == "inputs" and isinstance(value, dict):
        return {key: _placed("root", path, home) for key, path in value.items()}
    return value
