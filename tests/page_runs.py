"""Runs for pages: ended ones that were never started, and a corpus of what a hostile run may hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path

from support import finished_run

from sdk.job.layout import RunPaths

# Names, metrics and log lines that break out of something if they are not escaped: HTML, attributes, scripts, JSON in a script,
# templates, Markdown, terminals, directions of text, and what UTF-8 lacks.
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]><svg onload=alert(1)>",
    "<img src=x onerror=alert(1)>",
    '" autofocus onfocus="alert(1)',
    "' onmouseover='alert(1)",
    "</pre></table></main><iframe src=//evil.example>",
    "</style><style>*{display:none}",
    "</textarea></title><base href=//evil.example>",
    "{{ 7 * 7 }}{% for x in y %}",
    "&lt;b&gt;&#60;script&#62;",
    "javascript:alert(1)",
    "[x](javascript:alert(1)) ![y](//evil.example) | `z` ```",
    "@everyone",
    "\x1b]0;title\x07\x1b[31m<b>\x1b[999999999999m\x1b[2J\x1b[",
    "\u202etxt.exe\u2066",
    "\u2028\u2029\x00\x0b\x9b",
    "\ud800",
    "__proto__",
    "constructor",
    "",
    "x" * 5000,
)


def page_run(
    root: Path,
    name: str,
    records: Iterable[Mapping[str, object]] = (),
    *,
    failure: str = "",
    traceback: str = "",
    log: str = "",
    created: float = 1_795_193_567.0,
) -> RunPaths:
    """Make an ended run of two tasks."""
    run = finished_run(root, name)
    if failure:
        ended = {"task": "chief-0", "message": failure, "traceback": traceback, "log": ""}
        final = {"state": "FAILED", "reason": "user_error", "failure": ended}
        path = next(Path(run.events).glob("*.final.json"))
        path.write_text(json.dumps({"data": final, "time": created + 60, "version": 1}))
    lines = (json.dumps({"time": created + 1, "epoch": 0, **record}) for record in records)
    Path(run.metrics(1, "chief-0")).write_text("".join(f"{line}\n" for line in lines))
    Path(run.log(1, "chief-0")).write_text(log, errors="backslashreplace")
    return run


class Elements(HTMLParser):
    """How often each element is there, the names of its attributes, and the content of the block of data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.data, self._in_data = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = tuple(name for name, _ in attrs)
        # Colours of terminals are spans with classes.
        self.found[tag, names] += (tag, names) != ("span", ("class",))
        self._in_data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        self.data += data if self._in_data else ""
        self._in_data = False
