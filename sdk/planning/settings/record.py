"""Writes settings into a project's file, and leaves the rest of it as it is."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...job.images import FAMILIES
from ...packaging import project

_FILE, _TABLE = "podlift.toml", "tool.podlift"
# `podlift init` writes this in place of a setting that it has not found.
NOT_FOUND = "# not found: "


@dataclass(frozen=True)
class SettingsFile:
    """The file that settings are written to, and the table that holds them there, "" for the top."""

    path: Path
    table: str

    def header(self, table: str) -> str:
        return f"[{'.'.join(filter(None, (self.table, table)))}]"


def place(start: Path) -> SettingsFile:
    """Return the place of a project's settings, present or future: the file of the nearest project, as it is read."""
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


def current(where: SettingsFile, setting: str) -> object:
    """Return the value of a setting in the file, such as "vertex.image"; None if the file does not set it."""
    value: object = project.read_toml(where.path)
    for name in filter(None, (*where.table.split("."), *setting.split("."))):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def write(where: SettingsFile, setting: str, family: str, image: str) -> None:
    """Set the image of a family of hardware; InputError if the file is written in a way that prevents it."""
    text = changed(where, setting, family, image)
    try:
        save(where.path, text)
    except OSError as error:
        raise _refusal(where, setting, family, image, str(error.strerror)) from error


def read(path: Path) -> str:
    """Return a file's text with the ends of its lines, without a mark of its encoding; "" if there is none."""
    if not path.exists():
        return ""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return file.read()


def line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def without_notes(text: str, about: str = "") -> str:
    """Return the text without the notes about missing settings, or only without the notes that match a pattern."""
    for note in reversed([*re.finditer(rf"^{NOT_FOUND}{about}.*\n?", text, re.MULTILINE)]):
        rest = text[: note.start()] + text[note.end() :]
        # Any other line is part of a text.
        text = rest if parsed(rest) == parsed(text) else text
    return text


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


def changed(where: SettingsFile, setting: str, family: str, image: str) -> str:
    """Return the text of the file with the image, which is read again to be sure.

    One image for all hardware becomes a table in which the other families keep it, unless it is this image.
    """
    text, before = read(where.path), current(where, setting)
    if before == image:
        return text
    table, key = setting.split(".")
    baseline = project.parse_toml(text.encode(), str(where.path))
    text = without_notes(text, f"{key} \\(")
    others = before if isinstance(before, dict) else dict.fromkeys(FAMILIES, before) if before else {}
    after = {**others, family: image}
    header = where.header(setting)
    new_text = (
        _replaced(text, where.header(table), key, inline(after))
        or _replaced(text, header, family, json.dumps(image))
        or added(text, header, [f"{family} = {json.dumps(image)}"])
    )
    names = [*filter(None, where.table.split(".")), table, key]
    if parsed(new_text) != _with(baseline, names, after):
        raise _refusal(where, setting, family, image, f"{header} is written there in another way")
    return new_text


def inline(value: Mapping[str, str]) -> str:
    """Return a table as TOML in one line."""
    return f"{{ {', '.join(f'{name} = {json.dumps(image)}' for name, image in value.items())} }}"


def _section(text: str, header: str) -> tuple[int, int] | None:
    """Return where the lines below a header begin and end."""
    name = re.escape(header.strip("[]"))
    match = re.search(rf"^[ \t]*\[[ \t]*{name}[ \t]*\][ \t]*(#[^\r\n]*)?(?=\r?$)", text, re.MULTILINE)
    if match is None:
        return None
    end = re.compile(r"^[ \t]*\[", re.MULTILINE).search(text, match.end())
    return match.end(), end.start() if end else len(text)


def _replaced(text: str, header: str, key: str, value: str) -> str:
    """Return the text with another value of a key below a header, keeping its comment; "" if the key is missing."""
    line = re.compile(rf"^([ \t]*{re.escape(key)}[ \t]*=[ \t]*)(.*?)\r?$", re.MULTILINE)
    section = _section(text, header)
    match = line.search(text, *section) if section else None
    return f"{text[: match.end(1)]}{value}{_comment(match[2])}{text[match.end(2) :]}" if match else ""


def _comment(written: str) -> str:
    """Return the comment after a value, with the blanks before it: a "#" inside a text begins no comment."""
    ends = (len(written[: sign.start()].rstrip()) for sign in re.finditer("#", written))
    return next((written[end:] for end in ends if parsed(f"value = {written[:end]}") is not None), "")


def added(text: str, header: str, lines: Sequence[str]) -> str:
    """Return the text with lines below a header, which is added if there is none."""
    end, section = line_end(text), _section(text, header)
    if section is None:
        above = f"{text.rstrip()}{end}{end}" if text.strip() else ""
        return above + end.join([header, *lines, ""])
    return f"{text[: section[0]]}{''.join(f'{end}{line}' for line in lines)}{text[section[0] :] or end}"


def parsed(text: str) -> dict[str, object] | None:
    try:
        return project.parse_toml(text.encode(), "")
    except InputError:
        return None


def _with(data: Mapping[str, object], names: list[str], value: object) -> dict[str, object]:
    """Return a parsed file with another value of one setting."""
    if len(names) == 1:
        return {**data, names[0]: value}
    inner = data.get(names[0], {})
    return {**data, names[0]: _with(inner if isinstance(inner, dict) else {}, names[1:], value)}


def _refusal(where: SettingsFile, setting: str, family: str, image: str, why: str) -> InputError:
    return InputError(
        f"{str(where.path)!r} cannot be changed: {why}. Next: set {setting}.{family} to {json.dumps(image)} there yourself."
    )
