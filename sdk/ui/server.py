"""The page on loopback: lists runs, shows one, and compares several. It only reads, unless actions are allowed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar
from urllib.parse import parse_qs, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from ..checkpoint import catalog
from ..clock import Clock
from ..errors import InputError, PodliftError, RunNotFoundError, nearest
from ..job.layout import RootPaths, RunPaths
from ..job.plan import Plan
from ..storage.registry import open_store
from ..text import clipped
from . import gather, listing, model, pages
from .guard import MAY_ACT, PageGuard
from .model import RunView, Tail
from .request_heads import RequestHeads, backlog
from .rows import RunInfo

_T = TypeVar("_T")
# How long what was read is shown to others who ask, and how often a page asks.
_FRESH_S, REFRESH_S, _KEPT = 1.5, 3, 32
# Lines of a search in logs, and runs of a comparison.
_FOUND, _COMPARED = 500, 12
_LONGEST_FORM = 10_000
# What the list shows without a parameter.
_PLAIN = {"sort": "-created", "page": "1"}


class ActedRun(gather.SeenRun, Protocol):
    """A run that the page may also change."""

    def cancel(self) -> None: ...
    def resume(self) -> str: ...


class RunSources(Protocol):
    """Where runs come from; the command has them from `sdk.api`."""

    def runs(self, root: str) -> tuple[list[RunInfo], list[str]]:
        """Return the runs below a root, and what is wrong with it."""

    def attach(self, url: str) -> ActedRun:
        """Return a run by its directory."""


class _Answers:
    """Remembers for a moment what was read, so that many tabs read once. One thread reads a thing at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._known: dict[str, tuple[float, object]] = {}

    def get(self, name: str, read: Callable[[], _T]) -> _T:
        with self._lock:
            if len(self._known) > _KEPT:
                self._known, self._locks = {}, {}
            lock = self._locks.setdefault(name, threading.Lock())
        known = self._known.get(name)
        # What is being read may take half a minute if a bucket does not answer: meanwhile, the last answer is shown.
        if not lock.acquire(blocking=known is None):
            return known[1]  # type: ignore[index,return-value]
        try:
            known = self._known.get(name)
            if known is None or time.monotonic() - known[0] > _FRESH_S:
                answer = read()
                self._known[name] = known = time.monotonic(), answer
            return known[1]  # type: ignore[return-value]
        finally:
            lock.release()

    def forget(self, name: str) -> None:
        self._known.pop(name, None)


@dataclass(frozen=True)
class _Looked:
    """A view, the plan if it is known, and whether the page should ask again."""

    view: RunView
    plan: Plan | None
    asks: bool


class Pages:
    """The answers to requests. Each runs in a thread of its own."""

    def __init__(self, roots: Sequence[str], sources: RunSources, clock: Clock) -> None:
        self._roots, self._sources, self._clock = roots, sources, clock
        self._memory = _Answers()

    def app(self) -> Starlette:
        routes = {
            "/": self.index,
            "/run/{root:int}/{id}": self.run,
            "/run/{root:int}/{id}/curves.json": self.curves,
            "/run/{root:int}/{id}/logs": self.logs,
            "/run/{root:int}/{id}/lines": self.lines,
            "/compare": self.compare,
            "/assets/{name}": self.asset,
        }
        acts = Route("/run/{root:int}/{id}/act", self.act, methods=["POST"])
        return Starlette(routes=[acts, *(Route(path, answer) for path, answer in routes.items())])

    def index(self, request: Request) -> Response:
        runs, problems = self._memory.get("", self._list)
        shown = listing.listing(runs, listing.wanted(request.query_params), self._clock.now())
        about = shown.wanted
        query = {
            "q": about.search,
            "state": about.state,
            "label": about.label,
            "sort": about.sort,
            "page": str(about.page),
        }

        def link(**changed: object) -> str:
            wanted = {**query, **{name: str(value) for name, value in changed.items()}}
            return "/?" + urlencode({name: value for name, value in wanted.items() if value != _PLAIN.get(name, "")})

        part = "_list.html" if request.query_params.get("part") else "list.html"
        values = {"roots": self._roots, "problems": problems}
        return _html(pages.render(part, found=shown, link=link, refresh=REFRESH_S, **values))

    def run(self, request: Request) -> Response:
        number, run = int(request.path_params["root"]), str(request.path_params["id"])
        seen = self._look(number, run)
        return self._shown(request, seen, request.url.path)

    def _shown(self, request: Request, seen: _Looked, at: str, status: int = 200) -> Response:
        values = {"view": seen.view, "asks": seen.asks, "refresh": REFRESH_S, "at": at}
        values["acts"] = request.scope.get(MAY_ACT, False)
        if request.query_params.get("part"):
            return _html(pages.render("_live.html", **values))
        return _html(pages.render("run.html", charts=pages.overlaid([seen.view]), **values), status)

    async def act(self, request: Request) -> Response:
        """Do what a form asks for."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LONGEST_FORM:
                return PlainTextResponse("The form is too long.", 413)
        form = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        return await run_in_threadpool(self._act, request, form)

    def _act(self, request: Request, form: Mapping[str, str]) -> Response:
        number, name = int(request.path_params["root"]), str(request.path_params["id"])
        at = request.url.path.removesuffix("/act")
        try:
            run = self._sources.attach(self._url(number, name))
            if form.get("do") == "cancel":
                run.cancel()
            elif form.get("do") == "resume":
                run.resume()
            elif form.get("do") == "pin":
                catalog.pin(open_store(RunPaths(run.url).store), form.get("checkpoint", ""), form.get("name", ""))
            else:
                raise InputError(f"Unknown action. Received: {clipped(form.get('do', ''), 100)!r}.")
        except gather.DAMAGE as error:
            seen = self._look(number, name)
            problem = f"Nothing was done. {error if isinstance(error, PodliftError) else repr(error)}"
            view = replace(seen.view, problems=[problem, *seen.view.problems])
            return self._shown(request, replace(seen, view=view), at, 409)
        self._memory.forget(f"{number}/{name}")
        return RedirectResponse(at, 303)

    def curves(self, request: Request) -> Response:
        seen = self._look(int(request.path_params["root"]), str(request.path_params["id"]))
        return JSONResponse(pages.data_of(pages.overlaid([seen.view])))

    def logs(self, request: Request) -> Response:
        query, number, name = request.query_params, int(request.path_params["root"]), str(request.path_params["id"])
        task, word = query.get("task", ""), query.get("q", "")
        attempt, before = _count(query.get("attempt", "")), _count(query.get("before", ""))
        known, problem, tails, attempts, live = list[str](), "", list[Tail](), 0, False
        try:
            run = self._sources.attach(self._url(number, name))
            status, known = run.status(), run.plan.tasks
            attempts, live = status.attempts, not status.state.terminal
            shown = attempt or attempts
            if task and task not in known:
                raise InputError(f"The run has no task {task!r}. {nearest(task, known)}")
            if shown:
                run.logs(task=task or None, attempt=shown)  # brings them, or says that there is no such attempt
            if word and shown:
                tails = gather.searched(run, shown, word, _FOUND, task)
            else:
                lines = _FOUND if task or len(known) == 1 else gather.LINES
                tails = gather.tails(run, shown, lines, task=task, before=before)
            live = live and shown == attempts
        except gather.DAMAGE as error:
            problem = str(error) if isinstance(error, PodliftError) else repr(error)
        follows = live and not word and before is None and query.get("follow") != "no"
        values = {"id": name, "task": task, "attempt": attempt, "word": word, "tasks": known, "problem": problem}
        values |= {"attempts": attempts, "live": live, "follows": follows, "refresh": REFRESH_S}
        return _html(pages.render("logs.html", tails=tails, at=request.url.path.removesuffix("/logs"), **values))

    def lines(self, request: Request) -> Response:
        """Return the lines of a task after a place, for a page that follows them."""
        query, number, name = request.query_params, int(request.path_params["root"]), str(request.path_params["id"])
        task, attempt, after = query.get("task", ""), _count(query.get("attempt", "")), _count(query.get("after", ""))
        try:
            run = self._sources.attach(self._url(number, name))
            if task not in run.plan.tasks:
                raise InputError(f"The run has no task {task!r}. {nearest(task, run.plan.tasks)}")
            asks = not run.status().state.terminal
            tail = gather.newer(run, attempt or 1, task, after or 0, _FOUND)
        except gather.DAMAGE as error:
            # What is gone stays so; a bucket that cannot be reached is asked again.
            asks = not isinstance(error, (RunNotFoundError, InputError))
            problem = str(error) if isinstance(error, PodliftError) else repr(error)
            tail = Tail(task=task, attempt=attempt or 1, text="", begin=after, end=after or 0, note=problem)
        at = request.url.path.removesuffix("/lines")
        return _html(pages.render("lines.html", tail=tail, asks=asks, at=at, refresh=REFRESH_S))

    def compare(self, request: Request) -> Response:
        wanted = list(dict.fromkeys(request.query_params.getlist("run")))[:_COMPARED]
        split = [text.partition("/") for text in wanted]
        seen = [self._look(int(number), run) for number, _, run in split if number.isascii() and number.isdigit()]
        views = [run.view for run in seen]
        plans = {run.view.id: run.plan for run in seen if run.plan is not None}
        compared = model.compared(views, gather.differences(plans) if plans else [])
        return _html(pages.render("compare.html", views=views, comparison=compared, charts=pages.overlaid(views)))

    def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in pages.ASSETS:
            return PlainTextResponse("There is no such file.", 404)
        return Response(pages.asset(name), media_type=pages.ASSETS[name])

    def _list(self) -> tuple[list[listing.Listed], list[str]]:
        listed, problems = list[listing.Listed](), list[str]()
        for number, root in enumerate(self._roots):
            try:
                runs, said = self._sources.runs(root)
            except (PodliftError, OSError) as error:
                runs, said = [], [f"The runs below {root} are not listed: {error}"]
            listed += [(number, info) for info in runs]
            problems += said
        return listed, problems

    def _url(self, number: int, run: str) -> str:
        if number >= len(self._roots) or run.startswith(".") or "/" in run:
            raise RunNotFoundError(f"No such run. Received: {clipped(run, 100)!r}.")
        return RootPaths(self._roots[number]).run(run).url

    def _look(self, number: int, run: str) -> _Looked:
        return self._memory.get(f"{number}/{run}", lambda: self._read(number, run))

    def _read(self, number: int, name: str) -> _Looked:
        """Return the view of a run. One that has gone, or is damaged, has the reason."""
        try:
            run = self._sources.attach(self._url(number, name))
            view = gather.look(run, run.id, self._clock)
            return _Looked(view, run.plan, view.live)
        except gather.DAMAGE as error:
            # What is gone stays so; a bucket that cannot be reached is asked again.
            return _Looked(gather.unreadable(name, name, error), None, not isinstance(error, RunNotFoundError))


def _count(text: str) -> int | None:
    """Return a number of a query; None for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _html(text: str, status: int = 200) -> Response:
    return HTMLResponse(text, status)


def serve(
    roots: Sequence[str],
    sources: RunSources,
    clock: Clock,
    *,
    port: int,
    token: str,
    announce: Callable[[str], None],
    acting: str = "",
) -> None:
    """Serve on loopback until a signal ends it; `announce` gets the URL with the token once connections are accepted.

    With `acting`, another token, a URL with both may change runs.

    Raises:
        InputError: the port cannot be used.
    """
    with bind(port) as listener:
        port = listener.getsockname()[1]
        listener.listen(backlog())
        heads = RequestHeads()
        config = uvicorn.Config(
            PageGuard(Pages(roots, sources, clock).app(), token, port, acting, heads),
            http=heads.protocol(),
            backlog=backlog(),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            log_level="critical",
            # It would write the token.
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        announce(f"http://127.0.0.1:{port}/?token={token}")
        uvicorn.Server(config).run(sockets=[listener])


def bind(port: int) -> socket.socket:
    """Return a socket on a port of the loopback interface, 0 for any free one."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise InputError(
            f"The port cannot be used: {reason}. Received: {port}. Next: another --port, or none for any free one."
        ) from None
    return listener
