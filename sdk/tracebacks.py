"""Tracebacks for the author of a program: foreign frames folded, paths relative to the project, long texts clipped.

These functions work on text, so that frames inside messages of TensorFlow and Keras, chained exceptions, exception groups and
the logs of other processes are all treated alike. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .text import counted

_FRAME = re.compile(r'(?P<lead>[ |]*)File "(?P<path>[^"\n]+)", line \d+(?P<within>, in .*)?')
_REPEATED = re.compile(r"[ |]*\[Previous line repeated (\d+) more times?\]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# A task runs a copy of the project: paths are shown relative to it.
_COPY = re.compile(r".*/attempts/\d{4}/tasks/[^/]+/code/(?=.)")
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_STANDARD = re.compile(r"<frozen |.*[/\\]lib(?:64)?[/\\](?:python3(?:\.\d+)?t?|python3\d+\.zip)[/\\]")
_GENERATED = re.compile(r".*[/\\]__autograph_generated_file")
_OURS = __file__.rpartition("/")[0] + "/"
_LIBRARY = "the standard library"
# Lines before the cause in messages of Keras and TensorFlow, and those that this module puts for others.
_PREAMBLE = re.compile(
    r"Graph execution error:|Detected at node .*|in user code:|Exception encountered when calling .*"
    r"|Traceback \(most recent call last\):|<stack traces unavailable>"
    r"|\.\.\. [\d,]+ (?:frames?|lines|characters) (?:of|left out).* \.\.\."
)
# The first and the last of many: frames, lines between frames, characters of a line, lines of all.
_FRAMES, _LINES, _CHARACTERS, _ALL = (5, 10), (24, 12), (600, 200), (100, 60)
_ONE_LINE = 200
# The last line of a traceback, and lines of loggers; not "Mean Squared Error: 0.02".
_ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)(?=:|$)|\bERROR\b|^\W*(?:error|failed|fatal)\b", re.ASCII)
# TensorFlow's native code reports missing drivers this way on every machine without a GPU.
_NATIVE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWEF] ")
_WHOLE = "the task's log has them"


@dataclass
class _TraceLines:
    """A frame with its source lines, or another line, which has no owner."""

    lines: list[str]
    owner: str | None = None  # whose code; "" for the user's
    lead: str = ""
    count: int = 1
    within: bool = True
    blank: list[str] = field(default_factory=list)  # TensorFlow leaves lines free between frames


def last_error(text: str) -> str:
    """Return the last line of an output that reports an error, or ""; without messages of TensorFlow's native code."""
    for line in reversed(_COLOUR.sub("", text).splitlines()):
        if _ERROR.search(line) and not _NATIVE.match(line):
            return one_line(line)
    return ""


def fold(text: str) -> str:
    """Fold each run of foreign frames into one line, and give the program's own frames project paths.

    Terminal colours and the middle of very long lines are dropped. If no frame is the program's, the last one stays: it is the
    only hint at the place.
    """
    parts = list(_parts(_COLOUR.sub("", text)))
    all_foreign = not any(part.owner == "" for part in parts)
    lines: list[str] = []
    foreign: list[_TraceLines] = []
    for number, part in enumerate(parts):
        after = parts[number + 1] if number + 1 < len(parts) else None
        last = all_foreign and (after is None or after.owner is None)
        if part.owner and part.within and not last:
            foreign.append(part)
            continue
        lines += [*_folded(foreign), *map(_shortened, part.lines), *part.blank]
        foreign = []
    return "\n".join([*lines, *_folded(foreign)]) + ("\n" if text.endswith("\n") else "")


def shorten(text: str) -> str:
    """Clip the long parts of a folded traceback to their beginning and end."""
    clipped_lines: list[str] = []
    group: list[list[str]] = []
    framed = False
    for part in _parts(text):
        if (part.owner is not None) != framed:
            clipped_lines += _ends(group, framed)
            group, framed = [], part.owner is not None
        group.append(part.lines)
    lines = [*clipped_lines, *_ends(group, framed)]
    first, last = _ALL
    if len(lines) > first + last + 1:
        lines[first:-last] = [f"... {len(lines) - first - last} lines left out: {_WHOLE} ..."]
    return "\n".join(lines)


def clip(text: str, limit: int) -> str:
    """Clip a text to about `limit` characters: its beginning and its end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half:,} characters left out: {_WHOLE} ...\n{text[-half:]}"


def one_line(text: str) -> str:
    """Return an error's message in one line, without the frames in it, folded or not, and without the preamble of Keras."""
    lines = [line for part in _parts(_COLOUR.sub("", text)) if part.owner is None for line in part.lines]
    causes = [line for line in lines if line.strip() and not _PREAMBLE.fullmatch(line.strip())]
    words = " ".join(" ".join(causes or lines).split())
    return words if len(words) <= _ONE_LINE else f"{words[:_ONE_LINE].rstrip()}..."


def _parts(text: str) -> Iterator[_TraceLines]:
    lines = text.rstrip("\n").split("\n")
    at = 0
    while at < len(lines):
        frame = _FRAME.match(lines[at])
        if frame is None:
            yield _TraceLines([lines[at]])
            at += 1
            continue
        path, lead = frame["path"], frame["lead"]
        short_path = _COPY.sub("", path)
        part = _TraceLines(
            [lines[at].replace(f'"{path}"', f'"{short_path}"', 1)], _owner(path), lead, within=bool(frame["within"])
        )
        at += 1
        while at < len(lines) and (lines[at].startswith(f"{lead}  ") or _REPEATED.fullmatch(lines[at])):
            again = _REPEATED.fullmatch(lines[at])
            part.count += int(again[1]) if again else 0
            part.lines.append(lines[at])
            at += 1
        free = at
        while free < len(lines) and not lines[free].strip():
            free += 1
        if free < len(lines) and _FRAME.match(lines[free]):
            part.blank, at = lines[at:free], free
        yield part


def _owner(path: str) -> str:
    if _COPY.match(path):
        return ""
    if path.startswith(_OURS):
        return "podlift"
    installed = _INSTALLED.match(path)
    if installed:
        return "podlift" if installed[1] == "sdk" else installed[1].removesuffix(".py")
    if _GENERATED.match(path):
        return "tensorflow"
    return _LIBRARY if _STANDARD.match(path) else ""


def _folded(parts: Sequence[_TraceLines]) -> list[str]:
    """Return one line for foreign frames: how many belong to which package."""
    counts: dict[str, int] = {}
    for part in parts:
        counts[part.owner or ""] = counts.get(part.owner or "", 0) + part.count
    if not counts:
        return []
    (name, count), *more = counts.items()
    words = [f"{counted(count, 'frame')} of {name}", *(f"{n} of {owner}" for owner, n in more)]
    return [f"{parts[0].lead}... {', '.join(words)} ..."]


def _ends(group: list[list[str]], framed: bool) -> list[str]:
    first, last = _FRAMES if framed else _LINES
    if len(group) > first + last + 1:
        lead = re.match(r"[ |]*", group[first][0])
        omitted = f"{len(group) - first - last} {'frames' if framed else 'lines'} left out: {_WHOLE}"
        group = [*group[:first], [f"{lead[0] if lead else ''}... {omitted} ..."], *group[-last:]]
    return [line for lines in group for line in lines]


def _shortened(line: str) -> str:
    first, last = _CHARACTERS
    left_out = len(line) - first - last
    return (
        line
        if left_out < first
        else f"{line[:first]} ... {left_out:,} characters left out: {_WHOLE} ... {line[-last:]}"
    )
