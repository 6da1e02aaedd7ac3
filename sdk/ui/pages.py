"""Fills templates: everything is escaped, and control characters are shown instead of obeyed."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from .. import text
from .curves import Charts, Point, charts, outline, polylines
from .model import RunsCompared, RunView, root_cause
from .sweeps import SweepView

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_HOME = Path(__file__).parent
ASSETS = {
    "htmx.min.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
    "page.js": "text/javascript",
    "uPlot.min.css": "text/css",
    "page.css": "text/css",
}
STYLES, SCRIPTS = ("uPlot.min.css", "page.css"), ("uPlot.iife.min.js", "page.js")
# A colour or weight of a terminal; other sequences are dropped.
_ANSI = re.compile(r"\x1b(?:\[([0-9;:]*)m|\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_MARKDOWN = re.compile(r"([\\`*_\[\]|<>~&])")
_SPARK = (240, 48)
# Colours of the icon, by states.
_COLOURS = {
    ("succeeded", "active", "done"): "#1a7f37",
    ("failed", "lost", "unreadable", "attention", "damaged"): "#cf222e",
    ("running", "pending"): "#0969da",
    ("cancelled", "checkpointed", "paused", "stopped"): "#9a6700",
}


def asset(name: str) -> bytes:
    return (_HOME / "assets" / name).read_bytes()


def render(template: str, **values: object) -> str:
    """Return a template filled with values. Characters that UTF-8 lacks are escaped."""
    return _environment().get_template(template).render(values).encode("utf-8", "backslashreplace").decode()


def report(views: Sequence[RunView], comparison: RunsCompared | None, report_time: float) -> str:
    """Return runs as one file."""
    return _one_file("report.html", views=views, comparison=comparison, charts=overlaid(views), report_time=report_time)


def sweep_report(view: SweepView, report_time: float) -> str:
    """Return a sweep as one file."""
    return _one_file("sweep_report.html", view=view, charts=Charts(shown=[]), report_time=report_time)


def _one_file(template: str, **values: object) -> str:
    """Return one HTML file that needs no other: its scripts and styles are the only ones that its policy allows."""
    styles = [asset(name).decode() for name in STYLES]
    scripts = [asset(name).decode() for name in SCRIPTS]
    hashes = [
        "'sha256-" + base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() + "'" for t in styles + scripts
    ]
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {' '.join(hashes[: len(styles)])}; "
        f"script-src {' '.join(hashes[len(styles) :])}"
    )
    return render(template, policy=policy, styles=styles, scripts=scripts, **values)


def markdown(views: Sequence[RunView], comparison: RunsCompared | None) -> str:
    """Return a summary that a CI job can post."""
    return render("report.md", views=views, comparison=comparison)


def overlaid(views: Sequence[RunView]) -> Charts:
    return charts({view.id: view.curves for view in views})


def data_of(drawn: Charts) -> list[dict[str, object]]:
    """Return charts as JSON values."""
    return [{"name": curve.name, "series": [one._asdict() for one in curve.series]} for curve in drawn.shown]


@cache
def _environment() -> Environment:
    # Imported here: nothing else of podlift needs it, and it takes 40 ms.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(_HOME / "templates"),
        autoescape=select_autoescape(disabled_extensions=("md",), default=True),
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "ansi": ansi,
        "cause": root_cause,
        "clock": clock,
        "code": _fenced,
        "data": data_of,
        "duration": text.duration,
        "fields": asdict,
        "favicon": favicon,
        "md": _markdown,
        "moment": moment,
        "money": text.money,
        "number": _number,
        "polylines": polylines,
        # Names of folders need not be UTF-8.
        "quoted": partial(quote, safe="", errors="surrogatepass"),
        "size": lambda count: "" if count is None else text.size(count),
        "trusted": _trusted,
    }
    environment.globals |= {"outline": _outline, "spark": _SPARK}
    return environment


def _harmless(value: object) -> object:
    from markupsafe import Markup

    return text.harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def ansi(line: str) -> Markup:
    """Return a log as HTML, with the colours that a terminal would show."""
    from markupsafe import Markup, escape

    parts, at, opened = [], 0, False
    for match in _ANSI.finditer(line):
        parts.append(escape(text.harmless(line[at : match.start()])))
        at = match.end()
        if match[1] is None:
            continue
        codes = [
            int(code) for code in re.split("[;:]", match[1]) if code.isascii() and code.isdigit() and len(code) < 4
        ]
        classes = [f"a{code}" for code in codes if code in (1, 3, 4) or 30 <= code <= 37 or 90 <= code <= 97]
        parts.append(Markup("</span>") if opened else Markup(""))
        parts.append(Markup('<span class="{}">').format(" ".join(classes)) if classes else Markup(""))
        opened = bool(classes)
    parts.append(escape(text.harmless(line[at:])))
    return Markup("").join([*parts, Markup("</span>") if opened else Markup("")])


def clock(time: float | None) -> str:
    """Return a unix time in this machine's time zone; "" without one."""
    if time is None or not math.isfinite(time):
        return ""
    try:
        return datetime.fromtimestamp(time).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    except (OverflowError, ValueError, OSError):
        return ""


def moment(time: float | None, *, short: bool = False) -> Markup:
    """Return a unix time as an element, which the script of the page moves to the reader's time zone; `short` lacks seconds."""
    from markupsafe import Markup

    clock_text = clock(time)
    if not clock_text:
        return Markup("")
    day, hour, zone = clock_text.split(" ")
    iso, kind = f"{day}T{hour}{zone}", "short" if short else "long"
    return Markup('<time class="{}" datetime="{}">{} {}</time>').format(kind, iso, day, hour[: 5 if short else 8])


def favicon(state: str) -> str:
    """Return the icon of a page in the colour of a state, as the address of an image."""
    colour = next((colour for names, colour in _COLOURS.items() if state.lower() in names), "#3d6fd9")
    lift = "<path d='M8 3.2 13 8.4h-3v4.4H6V8.4H3z' fill='%23fff'/>"
    box = f"<rect width='16' height='16' rx='4' fill='{quote(colour)}'/>"
    return f"data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>{box}{lift}</svg>"


def _number(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, (int, float)) else "nan"


def _markdown(value: object) -> str:
    """Escape what Markdown and HTML would obey."""
    # A mention notifies people; a comment within it does not show.
    return _MARKDOWN.sub(r"\\\1", text.visible(str(value))).replace("@", "@<!-- -->")


def _fenced(value: str) -> str:
    """Return a block of code that nothing in it can end."""
    longest = max((len(run) for run in re.findall("`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text.harmless(value)}\n{fence}"


def _trusted(own: str) -> Markup:
    """Return a text of podlift itself, such as a script, as it is."""
    from markupsafe import Markup

    return Markup(own)  # noqa: S704 - a file of this package


def _outline(points: Sequence[Point]) -> list[str]:
    return outline(points, *_SPARK)
