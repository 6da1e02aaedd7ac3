"""The page on loopback: runs, schedules, models and sweeps. It only reads, unless actions are allowed."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar
from urllib.parse import parse_qs, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from ..checkpoint import catalog
from ..clock import Clock
from ..errors import InputError, PodliftError, RunNotFoundError, nearest
from ..job.layout import RootPaths, RunPaths
from ..job.plan import Plan
from ..model_registry.models import Model
from ..storage.registry import open_store
from ..text import clipped
from . import gather, listing, model, models, pages, schedules
from .guard import MAY_ACT, PageGuard
from .model import RunView, Tail
from .models import ModelView
from .request_heads import RequestHeads, backlog, bind, listen
from .rows import RunInfo
from .schedules import ActedSchedule, ScheduleView
from .sweeps import SweepView

_T = TypeVar("_T")
# An answer is shared by all who ask within this time; pages of runs, and the other ones, ask this often.
_FRESH_S, REFRESH_S, SLOW_REFRESH_S, _KEPT = 1.5, 3, 10, 32
# How long the header of a page waits for the question whether there are sweeps.
_PATIENCE_S = 1.0
# Lines of a search in logs, and runs of a comparison.
_FOUND, _COMPARED = 500, 12
_LONGEST_FORM = 10_000
# The parameters of the list by default.
_PLAIN = {"sort": "-created", "page": "1"}


class ActedRun(gather.SeenRun, Protocol):
    """A run that the page may also change."""

    def cancel(self) -> None: ...
    def resume(self) -> str: ...


class Sources(Protocol):
    """Where runs, schedules, models and sweeps come from; the command has them from the rooms above this one."""

    def runs(self, root: str) -> tuple[list[RunInfo], list[str]]:
        """Return the runs below a root, and the problems of the root."""

    def attach(self, url: str) -> ActedRun:
        """Return a run by its directory."""

    def schedules(self, root: str) -> tuple[list[ScheduleView], list[str]]:
        """Return the schedules below a root, and the problems of the root."""

    def schedule(self, root: str, name: str) -> ScheduleView:
        """Return one schedule with its arguments and rules."""

    def acted_schedule(self, root: str, name: str) -> ActedSchedule:
        """Return one schedule for a change."""

    def models(self, root: str) -> list[Model]:
        """Return the models that are registered below a root."""

    def model(self, root: str, name: str) -> Model:
        """Return one model."""

    def has_sweeps(self, root: str) -> bool:
        """Return whether there is a sweep below a root."""

    def sweeps(self, root: str) -> list[SweepView]:
        """Return the sweeps below a root."""

    def sweep(self, root: str, name: str) -> SweepView:
        """Return one sweep."""

    def sweep_of(self, root: str, run: str) -> str:
        """Return the sweep that a run is a trial of, "" for another run."""


class _Answers:
    """Shares each answer for a moment, so that many tabs read once. One thread at a time reads the same thing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._cache: dict[str, tuple[float, object]] = {}

    def get(self, name: str, read: Callable[[], _T]) -> _T:
        with self._lock:
            if len(self._cache) > _KEPT:
                self._cache, self._locks = {}, {}
            lock = self._locks.setdefault(name, threading.Lock())
        cached_answer = self._cache.get(name)
        # A bucket that does not answer may take half a minute: meanwhile, the last answer is shown.
        if not lock.acquire(blocking=cached_answer is None):
            return cached_answer[1]  # type: ignore[index,return-value]
        try:
            cached_answer = self._cache.get(name)
            if cached_answer is None or time.monotonic() - cached_answer[0] > _FRESH_S:
                answer = read()
                cached_answer = time.monotonic(), answer
                # An answer from before an action would hide its effect.
                if self._locks.get(name) is lock:
                    self._cache[name] = cached_answer
            return cached_answer[1]  # type: ignore[return-value]
        finally:
            lock.release()

    def forget(self, name: str) -> None:
        with self._lock:
            self._cache.pop(name, None)
            self._locks.pop(name, None)


@dataclass(frozen=True)
class _Looked:
    """A view, the plan if it is known, and whether the page should ask again."""

    view: RunView
    plan: Plan | None
    asks: bool
    gone: bool = False


class Pages:
    """The answers to requests, each in its own thread."""

    def __init__(self, roots: Sequence[str], sources: Sources, clock: Clock) -> None:
        self._roots, self._sources, self._clock = roots, sources, clock
        self._memory, self._has_sweeps, self._asking = _Answers(), False, threading.Thread()
        self._firing, self._fired = threading.Lock(), deque[str](maxlen=_KEPT)
        self._header = threading.Lock()

    def app(self) -> Starlette:
        routes = {
            "/": self.index,
            "/run/{root:int}/{id}": self.run,
            "/run/{root:int}/{id}/curves.json": self.curves,
            "/run/{root:int}/{id}/logs": self.logs,
            "/run/{root:int}/{id}/lines": self.lines,
            "/compare": self.compare,
            "/schedules": self.schedules,
            "/schedule/{root:int}/{id}": self.schedule,
            "/models": self.models,
            "/model/{root:int}/{id}": self.model,
            "/sweeps": self.sweeps,
            "/sweep/{root:int}/{id}": self.sweep,
            "/assets/{name}": self.asset,
        }
        acts = Route("/{kind}/{root:int}/{id}/act", self.act, methods=["POST"])
        return Starlette(
            routes=[acts, *(Route(path, answer) for path, answer in routes.items())],
            exception_handlers={404: lambda request, error: self._missing("There is no such page.")},
        )

    # --- Runs ------------------------------------------------------------------------------------------------------------

    def index(self, request: Request) -> Response:
        runs, problems = self._memory.get("", self._list)
        page = listing.listing(runs, listing.request_of(request.query_params), self._clock.now())
        about = page.request
        query = {
            "q": about.search,
            "state": about.state,
            "label": about.label,
            "sort": about.sort,
            "page": str(about.page),
        }

        def link(**changed: object) -> str:
            parameters = {**query, **{name: str(value) for name, value in changed.items()}}
            changed_parameters = {name: value for name, value in parameters.items() if value != _PLAIN.get(name, "")}
            # Names of arguments need not be UTF-8.
            return "/?" + urlencode(changed_parameters, errors="surrogatepass")

        part = "_list.html" if request.query_params.get("part") else "list.html"
        values = {"roots": self._roots, "problems": problems}
        return HTMLResponse(self._page(part, runs_page=page, link=link, refresh=REFRESH_S, **values))

    def run(self, request: Request) -> Response:
        return self._show_run(request, request.url.path)

    def _show_run(self, request: Request, at: str, problem: str = "") -> Response:
        look, is_part = self._look(*_place(request)), bool(request.query_params.get("part"))
        view = replace(look.view, problems=[problem, *look.view.problems]) if problem else look.view
        # A page that is open already gets the sentence in its place.
        if look.gone and not is_part:
            return self._missing(" ".join(view.problems))
        values = {"view": view, "asks": look.asks, "refresh": REFRESH_S, "at": at, "root": _place(request)[0]}
        values["acts"] = request.scope.get(MAY_ACT, False)
        if is_part:
            return HTMLResponse(self._page("_live.html", **values))
        return HTMLResponse(self._page("run.html", charts=pages.overlaid([view]), **values), 409 if problem else 200)

    def _change_run(self, root: int, name: str, form: Mapping[str, str]) -> None:
        run = self._sources.attach(self._url(root, name))
        if form.get("do") == "cancel":
            run.cancel()
        elif form.get("do") == "resume":
            run.resume()
        elif form.get("do") == "pin":
            catalog.pin(open_store(RunPaths(run.url).store), form.get("checkpoint", ""), form.get("name", ""))
        else:
            raise _unknown_action(form)

    async def act(self, request: Request) -> Response:
        """Take the action that a form asks for."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LONGEST_FORM:
                return PlainTextResponse("The form is too long.", 413)
        form = {name: values[-1] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}
        return await run_in_threadpool(self._act, request, form)

    def _act(self, request: Request, form: Mapping[str, str]) -> Response:
        kinds = {
            "run": (self._change_run, self._show_run),
            "schedule": (self._change_schedule, self._show_schedule),
            "model": (self._change_model, self._show_model),
        }
        (root, name), at, kind = _place(request), request.url.path.removesuffix("/act"), request.path_params["kind"]
        if kind not in kinds:
            return self._missing("There is no such page.")
        change, show = kinds[kind]
        try:
            change(root, name, form)
        except gather.DAMAGE as error:
            return show(request, at, f"Nothing was done. {_message(error)}")
        finally:
            self._memory.forget(at)
        return RedirectResponse(at, 303)

    def curves(self, request: Request) -> Response:
        # In ASCII: names of metrics need not be UTF-8.
        data = json.dumps(pages.data_of(pages.overlaid([self._look(*_place(request)).view])))
        return Response(data, media_type="application/json")

    def logs(self, request: Request) -> Response:
        query, (number, name) = request.query_params, _place(request)
        task, word = query.get("task", ""), query.get("q", "")
        attempt, before = _count(query.get("attempt", "")), _count(query.get("before", ""))
        tasks, problem, tails, attempts, live = list[str](), "", list[Tail](), 0, False
        try:
            run = self._sources.attach(self._url(number, name))
            status, tasks = run.status(), run.plan.tasks
            attempts, live = status.attempts, not status.state.terminal
            shown_attempt = attempt or attempts
            if task and task not in tasks:
                raise InputError(f"The run has no task {task!r}. {nearest(task, tasks)}")
            if shown_attempt:
                run.logs(task=task or None, attempt=shown_attempt)  # brings them, or says that there is no such attempt
            if word and shown_attempt:
                tails = gather.searched(run, shown_attempt, word, _FOUND, task)
            else:
                lines = _FOUND if task or len(tasks) == 1 else gather.LINES
                tails = gather.tails(run, shown_attempt, lines, task=task, before=before)
            live = live and shown_attempt == attempts
        except RunNotFoundError as error:
            return self._missing(str(error))
        except gather.DAMAGE as error:
            problem = _message(error)
        follows = live and not word and before is None and query.get("follow") != "no"
        values = {"id": name, "task": task, "attempt": attempt, "word": word, "tasks": tasks, "problem": problem}
        values |= {"attempts": attempts, "live": live, "follows": follows, "refresh": REFRESH_S}
        return HTMLResponse(self._page("logs.html", tails=tails, at=request.url.path.removesuffix("/logs"), **values))

    def lines(self, request: Request) -> Response:
        """Return the lines of a task after a place, for a page that follows them."""
        query, (number, name) = request.query_params, _place(request)
        task, attempt, after = query.get("task", ""), _count(query.get("attempt", "")), _count(query.get("after", ""))
        try:
            run = self._sources.attach(self._url(number, name))
            if task not in run.plan.tasks:
                raise InputError(f"The run has no task {task!r}. {nearest(task, run.plan.tasks)}")
            asks = not run.status().state.terminal
            tail = gather.newer(run, attempt or 1, task, after or 0, _FOUND)
        except gather.DAMAGE as error:
            # A run that is gone stays so; a bucket that cannot be reached is asked again.
            asks = not isinstance(error, (RunNotFoundError, InputError))
            problem = _message(error)
            tail = Tail(task=task, attempt=attempt or 1, text="", begin=after, end=after or 0, note=problem)
        at = request.url.path.removesuffix("/lines")
        return HTMLResponse(self._page("lines.html", tail=tail, asks=asks, at=at, refresh=REFRESH_S))

    def compare(self, request: Request) -> Response:
        references = list(dict.fromkeys(request.query_params.getlist("run")))[:_COMPARED]
        split = [text.partition("/") for text in references]
        chosen = [(int(number), run) for number, _, run in split if number.isascii() and number.isdigit()]
        looks = [self._look(number, run) for number, run in chosen]
        views = [run.view for run in looks]
        plans = {run.view.id: run.plan for run in looks if run.plan is not None}
        values = {
            "views": views,
            "places": [number for number, _ in chosen],
            "comparison": model.compared(views, gather.differences(plans) if plans else {}),
            "charts": pages.overlaid(views),
        }
        return HTMLResponse(self._page("compare.html", **values))

    # --- Schedules, models and sweeps ---------------------------------------------------------------------------------

    def schedules(self, request: Request) -> Response:
        rows, problems = self._memory.get("/schedules", lambda: self._each("schedules", self._sources.schedules))
        return self._board(request, "schedules.html", rows=rows, problems=problems)

    def schedule(self, request: Request) -> Response:
        return self._show_schedule(request, request.url.path)

    def _show_schedule(self, request: Request, at: str, problem: str = "") -> Response:
        root, name = _place(request)
        try:
            view = self._memory.get(at, lambda: self._sources.schedule(self._root(root), name))
        except PodliftError as error:
            return self._unshown(request, at, error, "schedules")
        values = {"view": view, "root": root, "at": at, "click": secrets.token_hex(8)}
        return self._board(request, "schedule.html", problems=_texts(problem), **values)

    def _change_schedule(self, root: int, name: str, form: Mapping[str, str]) -> None:
        do, click = form.get("do", ""), form.get("click", "")
        if do == "run" and not click:
            raise InputError("The form has no id of its click. Next: load the page again.")
        # A double click sends one form twice, and the second one comes while the first one fires.
        with self._firing:
            if do == "run" and click in self._fired:
                return
            if not schedules.act(self._sources.acted_schedule(self._root(root), name), do):
                raise _unknown_action(form)
            self._fired.append(click)

    def models(self, request: Request) -> Response:
        rows, problems = self._memory.get("/models", lambda: self._each("models", self._models))
        return self._board(request, "models.html", rows=rows, problems=problems)

    def _models(self, root: str) -> tuple[list[ModelView], list[str]]:
        return [_model_view(one, brief=True) for one in self._sources.models(root)], []

    def model(self, request: Request) -> Response:
        return self._show_model(request, request.url.path)

    def _show_model(self, request: Request, at: str, problem: str = "") -> Response:
        root, name = _place(request)
        try:
            view = self._memory.get(at, lambda: _model_view(self._sources.model(self._root(root), name)))
        except PodliftError as error:
            return self._unshown(request, at, error, "models")
        return self._board(request, "model.html", view=view, root=root, at=at, problems=_texts(problem))

    def _change_model(self, root: int, name: str, form: Mapping[str, str]) -> None:
        models.act(self._sources.model(self._root(root), name), form)

    def sweeps(self, request: Request) -> Response:
        rows, problems = self._memory.get(
            "/sweeps", lambda: self._each("sweeps", lambda root: (self._sources.sweeps(root), []))
        )
        return self._board(request, "sweeps.html", rows=rows, problems=problems)

    def sweep(self, request: Request) -> Response:
        (root, name), at = _place(request), request.url.path
        try:
            view = self._memory.get(at, lambda: self._sources.sweep(self._root(root), name))
        except PodliftError as error:
            return self._unshown(request, at, error, "sweeps")
        return self._board(request, "sweep.html", view=view, root=root, at=at, problems=[])

    def _sweeping(self) -> bool:
        """Return whether the header names the sweeps: once there was one, it does."""
        if not self._has_sweeps:
            with self._header:
                if not self._asking.is_alive():
                    self._asking = threading.Thread(target=self._ask_for_sweeps, daemon=True)
                    self._asking.start()
            # A bucket may take half a minute to fail; a later page names the sweeps.
            self._asking.join(_PATIENCE_S)
        return self._has_sweeps

    def _ask_for_sweeps(self) -> None:
        def ask(root: str) -> tuple[list[bool], list[str]]:
            self._has_sweeps = self._has_sweeps or self._sources.has_sweeps(root)
            return [], []

        # A root that cannot be read is named by the page itself.
        self._each("sweeps", ask)

    def _page(self, template: str, **values: object) -> str:
        # Only a template with a header asks for the sweeps.
        return pages.render(template, sweeping=self._sweeping, **values)

    def _missing(
        self, problem: str, noun: str = "runs", *, again: str = "", template: str = "missing.html", status: int = 404
    ) -> Response:
        values = {"problem": problem, "noun": noun, "again": again, "refresh": SLOW_REFRESH_S}
        return HTMLResponse(self._page(template, **values), status)

    def _board(self, request: Request, template: str, *, problems: Sequence[str], **values: object) -> Response:
        """Return a page of schedules, models or sweeps; a page that is open asks for its part again."""
        values |= {"problems": problems, "now": self._clock.now(), "roots": self._roots, "refresh": SLOW_REFRESH_S}
        values["acts"] = request.scope.get(MAY_ACT, False)
        name = f"_{template}" if request.query_params.get("part") else template
        return HTMLResponse(self._page(name, **values), 409 if problems and request.method == "POST" else 200)

    def _unshown(self, request: Request, at: str, error: PodliftError, noun: str) -> Response:
        """Return why a schedule, a model or a sweep is not shown; an open page asks a bucket that fails again."""
        gone = isinstance(error, InputError)
        again = "" if gone else at
        if request.query_params.get("part"):
            return self._missing(str(error), noun, again=again, template="_missing.html", status=200)
        return self._missing(str(error), noun, again=again, status=404 if gone else 502)

    # --- Files and roots -------------------------------------------------------------------------------------------------

    def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in pages.ASSETS:
            return PlainTextResponse("There is no such file.", 404)
        return Response(pages.asset(name), media_type=pages.ASSETS[name])

    def _list(self) -> tuple[list[listing.Listed], list[str]]:
        return self._each("runs", self._sources.runs)

    def _each(
        self, noun: str, read: Callable[[str], tuple[list[_T], list[str]]]
    ) -> tuple[list[tuple[int, _T]], list[str]]:
        """Return the things below all roots, each with the number of its root, and the problems."""
        things, problems = list[tuple[int, _T]](), list[str]()
        for number, root in enumerate(self._roots):
            try:
                root_things, root_problems = read(root)
            except (PodliftError, OSError) as error:
                root_things, root_problems = [], [f"The {noun} below {root} are not listed: {error}"]
            things += [(number, one) for one in root_things]
            problems += root_problems
        return things, problems

    def _root(self, number: int) -> str:
        if number >= len(self._roots):
            raise InputError(f"There is no such root. Received: {number}.")
        return self._roots[number]

    def _url(self, number: int, run: str) -> str:
        if number >= len(self._roots) or run.startswith(".") or "/" in run:
            raise RunNotFoundError(f"No such run. Received: {clipped(run, 100)!r}.")
        return RootPaths(self._roots[number]).run(run).url

    def _look(self, number: int, run: str) -> _Looked:
        return self._memory.get(f"/run/{number}/{run}", lambda: self._read(number, run))

    def _read(self, number: int, name: str) -> _Looked:
        """Return the view of a run. A run that has gone, or is damaged, has the reason."""
        try:
            run = self._sources.attach(self._url(number, name))
            view = gather.look(run, run.id, self._clock)
            view = replace(view, sweep=self._sources.sweep_of(self._root(number), run.id))
            return _Looked(view, run.plan, view.live)
        except gather.DAMAGE as error:
            # A run that is gone stays so; a bucket that cannot be reached is asked again.
            gone = isinstance(error, RunNotFoundError)
            return _Looked(gather.unreadable(name, name, error), None, not gone, gone)


def _place(request: Request) -> tuple[int, str]:
    """Return the number of the root and the name that a path holds."""
    return int(request.path_params["root"]), str(request.path_params["id"])


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, PodliftError) else repr(error)


def _texts(*texts: str) -> list[str]:
    return [text for text in texts if text]


def _model_view(one: Model, *, brief: bool = False) -> ModelView:
    """Return the view of a model. A damaged one has the reason, and leaves the others as they are."""
    try:
        return models.look(one, brief=brief)
    except PodliftError as error:
        return ModelView(name=one.name, problems=[str(error)])


def _unknown_action(form: Mapping[str, str]) -> InputError:
    return InputError(f"Unknown action. Received: {clipped(form.get('do', ''), 100)!r}.")


def _count(text: str) -> int | None:
    """Return the number in a parameter; None for another text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def serve(
    roots: Sequence[str],
    sources: Sources,
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
        listen(listener)
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
