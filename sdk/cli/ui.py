"""The verb that serves the page: ui."""

from __future__ import annotations

import os
import secrets
import tempfile
import webbrowser
from collections.abc import Callable
from functools import cache, cached_property
from html import escape
from pathlib import Path

from .. import api
from ..clock import SystemClock
from ..errors import InputError, Problems
from ..model_registry.models import Model
from ..planning import roots as known_roots
from ..planning.roots import in_bucket
from ..run import Run, RunInfo
from ..schedules import handle
from ..schedules.handle import Schedule
from ..storage.paths import usable
from ..sweeps.reader import Reader
from ..ui.schedules import ScheduleView
from ..ui.sweeps import SweepView
from . import schedule_text
from .output import answer, say
from .parameters import AllowActions, OpenBrowser, UiPort, UiRoots
from .sweep_view import view_of


class PageSources:
    """Where the page has its runs, schedules, models and sweeps from."""

    def runs(self, root: str) -> tuple[list[RunInfo], list[str]]:
        return api.list_runs(root, None, None, (), None)

    def attach(self, url: str) -> Run:
        return api.attach(url)

    def schedules(self, root: str) -> tuple[list[ScheduleView], list[str]]:
        listing = handle.listed(root)
        views, problems = list[ScheduleView](), [*listing.problems]
        for one in listing.schedules:
            try:
                views.append(schedule_text.view_of(one))
            except InputError as error:
                # Removed meanwhile, or its specification makes no sense: the others are shown.
                problems.append(f"The schedule {one.name} is not shown: {error}")
        return [*views, *map(schedule_text.view_of_orphan, listing.orphans)], problems

    def schedule(self, root: str, name: str) -> ScheduleView:
        return schedule_text.view_of(self.acted_schedule(root, name), whole=True)

    def acted_schedule(self, root: str, name: str) -> Schedule:
        return Schedule(name, root=root)

    def models(self, root: str) -> list[Model]:
        return api.models(root).all()

    def model(self, root: str, name: str) -> Model:
        return api.models(root)[name]

    def has_sweeps(self, root: str) -> bool:
        return self._sweeps(root).any()

    def sweeps(self, root: str) -> list[SweepView]:
        return [view_of(sweep) for sweep in self._sweeps(root).all()]

    def sweep(self, root: str, name: str) -> SweepView:
        return view_of(self._sweeps(root).one(name))

    def sweep_of(self, root: str, run: str) -> str:
        return self._sweeps(root).sweep_of(run)

    @cached_property
    def _sweeps(self) -> Callable[[str], Reader]:
        # One reader of each root, which keeps the trials that it has read.
        return cache(lambda root: Reader(root, SystemClock()))


def ui(
    roots: UiRoots = None, port: UiPort = 0, open_browser: OpenBrowser = False, allow_actions: AllowActions = False
) -> None:
    """Open a dashboard of your runs, schedules, models and sweeps in the browser, until Ctrl-C.

    The page is read-only, unless actions are allowed, and reachable from this machine only. The printed URL holds a token. From
    another machine, forward the port: ssh -L PORT:127.0.0.1:PORT.
    """
    root_urls, problems = _roots(roots or [])
    try:
        from ..ui.server import serve
    except ImportError as error:
        raise InputError(
            f"The page needs a package that is not installed: {error.name}. Next: pip install 'podlift[ui]'."
        ) from None
    for problem in problems:
        say(f"podlift: {problem}")

    acting = secrets.token_urlsafe(24) if allow_actions else ""

    def announce(url: str) -> None:
        answer(url)
        if acting:
            url = f"{url}&actions={acting}"
            answer(url)
            say("The second URL may also act on runs, schedules and models. The first one only reads.")
        say(f"Serving the runs of {', '.join(root_urls)}. Ctrl-C stops the page; runs are not affected.")
        if open_browser:
            _open(url)

    token = secrets.token_urlsafe(24)
    try:
        serve(root_urls, PageSources(), SystemClock(), port=port, token=token, announce=announce, acting=acting)
    except KeyboardInterrupt:
        pass
    say("Stopped. Runs are not affected.")


def _roots(texts: list[str]) -> tuple[list[str], list[str]]:
    """Return the roots to list, and the problems of other configured ones."""
    if not texts:
        return known_roots.configured_roots(os.environ)
    problems, chosen = Problems(), list[str]()
    with problems.closing():
        for text in texts:
            with problems.collect():
                root = known_roots.resolve_root(text, os.environ)
                with usable("The root", text):
                    if not in_bucket(root) and not Path(root).is_dir():
                        raise InputError(
                            f"The root is not a folder. Received: {text!r}. Next: podlift ui, for all roots."
                        )
                chosen.append(root)
    return list(dict.fromkeys(chosen)), []


def _open(url: str) -> None:
    # Not as an argument of the browser: other users of the machine see those.
    handle, path = tempfile.mkstemp(prefix="podlift-ui-", suffix=".html")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f'<meta http-equiv="refresh" content="0; url={escape(url)}"><a href="{escape(url)}">podlift</a>')
    if not webbrowser.open(Path(path).as_uri()):
        say("No browser was found. Next: open the URL.")
