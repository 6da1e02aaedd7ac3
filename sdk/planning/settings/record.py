"""Writes one setting into a project's file, and leaves the rest of it as it is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...packaging import project

_FILE, _TABLE = "podlift.toml", "tool.podlift"
# What `podlift init` writes in the place of a setting that it has not found.
NOT_FOUND = "# not found: "


@dataclass(frozen=True)
class SettingsFile:
    """The file that settings are written to, and the table that holds them there, "" for the top."""

    path: Path
    table: str

    def header(self, table: str) -> str:
        return f"[{'.'.join(filter(None, (self.table, table)))}]"


def place(start: Path) -> SettingsFile:
    """Return where the settings of a project stand, or where they will: the file of the nearest project, as it is read."""
    start = start.resolve()
    folder = start
    while (home := project.above(folder)) is not None:
        if (home / _FILE).exists():
            return SettingsFile(home / _FILE, "")
        tool = project.read_toml(home / "pyproject.toml").get("tool")
        if isinstance(tool, dict) and "podlift" in tool:
            return SettingsFile(home / "pyproject.toml", _TABLE)
        folder = home.parent
    return SettingsFile((project.above(start) or start) / _FILE, "")


def write(where: SettingsFile, table: str, key: str, value: str) -> None:
    """Set one key of a table, such as "vertex.images"; InputError if the file is written in a way that prevents it."""
    text = changed(where, table, key, value)
    try:
        save(where.path, text)
    except OSError as error:
        raise _refusal(where, table, key, value, str(error.strerror)) from error


def save(path: Path, text: str) -> None:
    """Replace a file's text at once, and keep its mode; of a link, the file that it names."""
    path = path.resolve()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="")
        if path.exists():
            part.chmod(path.stat().st_mode & 0o777)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def changed(where: SettingsFile, table: str, key: str, value: str) -> str:
    """Return the text of the file with the new value, which is read again to be sure."""
    text = ""
    if where.path.exists():
        # Read first: a file that cannot be parsed is not touched.
        project.read_toml(where.path)
        with where.path.open(encoding="utf-8", newline="") as file:
            text = file.read()
    # An image of one family of hardware answers for the one image.
    text = re.sub(rf"^{NOT_FOUND}{table.rpartition('.')[2].removesuffix('s')} \(.*\n?", "", text, flags=re.MULTILINE)
    line, header = f"{key} = {json.dumps(value)}", where.header(table)
    found = re.search(rf"^[ \t]*{re.escape(header)}[ \t]*(#.*)?$", text, re.MULTILINE)
    if found is None:
        made = f"{text.rstrip()}\n\n{header}\n{line}\n".lstrip()
    else:
        end = re.compile(r"^[ \t]*\[", re.MULTILINE).search(text, found.end())
        inside = text[found.end() : end.start() if end else len(text)]
        kept = re.sub(rf"^[ \t]*{re.escape(key)}[ \t]*=.*\n?", "", inside, flags=re.MULTILINE)
        made = f"{text[: found.end()]}\n{line}{kept}{text[end.start() :] if end else ''}"
    names = [*filter(None, where.table.split(".")), *table.split("."), key]
    if _parsed(made) != _with(project.parse_toml(text.encode(), str(where.path)), names, value):
        raise _refusal(where, table, key, value, f"{header} is written there in another way")
    return made


def _parsed(text: str) -> dict[str, object] | None:
    try:
        return project.parse_toml(text.encode(), "")
    except InputError:
        return None


def _with(data: Mapping[str, object], names: list[str], value: str) -> dict[str, object]:
    """Return a parsed file with one more value."""
    if len(names) == 1:
        return {**data, names[0]: value}
    inner = data.get(names[0], {})
    return {**data, names[0]: _with(inner if isinstance(inner, dict) else {}, names[1:], value)}


def _refusal(where: SettingsFile, table: str, key: str, value: str, why: str) -> InputError:
    return InputError(
        f"{str(where.path)!r} cannot be changed: {why}. Next: set {table}.{key} to {json.dumps(value)} there yourself."
    )
