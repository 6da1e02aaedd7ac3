"""`podlift ui`: the page on loopback, asked as a browser would ask it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
import urllib.request
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

import pytest
from checkpoint.parts import Attempt
from page_runs import HOSTILE, Elements, page_model, page_run, page_schedule, page_sweep, preempt
from registered_models import candidate
from support import FINISHED_RUN, holds, needs

import sdk
from sdk.checkpoint import restore
from sdk.cli.ui import PageSources
from sdk.clock import SystemClock
from sdk.errors import StoreError
from sdk.model_registry.decision import GuardResult
from sdk.model_registry.models import Model
from sdk.schedules.handle import Schedule
from sdk.schedules.records import Book
from sdk.status import Registered
from sdk.storage.posix_store import PosixStore
from sdk.storage.store import current
from sdk.sweeps import creation
from sdk.sweeps import records as sweep_records

needs("starlette", "uvicorn", "optuna")

from sdk.sweeps.study import Study  # noqa: E402
from sdk.ui import models, pages, server, sweeps  # noqa: E402
from sdk.ui.guard import PageGuard  # noqa: E402
from sdk.ui.schedules import Firing, ScheduleView  # noqa: E402
from sdk.ui.server import Pages  # noqa: E402

TOKEN, PORT, OWN = "the-token", 8000, "http://127.0.0.1:8000"
NEWEST = datetime(2026, 11, 28, 3, tzinfo=ZoneInfo("Europe/Berlin"))
RECORDS = [{"step": step, "metrics": {"loss": 1 / step}} for step in range(1, 6)]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Runs(PageSources):
    """The runs of this machine, and how often a root was listed."""

    def __init__(self) -> None:
        self.listed: Counter[str] = Counter()

    def runs(self, root: str):
        self.listed[root] += 1
        return super().runs(root)


class Visitor:
    """Asks an application without a socket, and keeps the cookie."""

    def __init__(self, *roots: Path, acting: str = "") -> None:
        self.sources, self.cookie = Runs(), ""
        app = Pages([str(root) for root in roots], self.sources, SystemClock()).app()
        self._app = PageGuard(app, TOKEN, PORT, acting)

    def get(self, target: str, *, method="GET", hosts=("127.0.0.1:8000",), body: bytes = b"", **headers: str) -> Answer:
        path, _, query = target.partition("?")
        sent = [(b"host", host.encode()) for host in hosts]
        sent += [(name.encode(), value.encode()) for name, value in headers.items()]
        sent += [(b"cookie", self.cookie.encode())] if self.cookie and "cookie" not in headers else []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": urllib.request.unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": sent, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", PORT),
        }  # fmt: skip
        messages: list[dict] = []

        async def ask() -> None:
            async def receive() -> dict:
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message: dict) -> None:
                messages.append(message)

            await self._app(scope, receive, send)

        asyncio.run(ask())
        headers = [(name.decode(), value.decode()) for name, value in messages[0]["headers"]]
        self.given = [value.partition(";")[0] for name, value in headers if name == "set-cookie"]
        text = b"".join(each.get("body", b"") for each in messages[1:]).decode()
        return Answer(messages[0]["status"], dict(headers), text)

    def let_in(self, actions: str = "") -> Visitor:
        self.get(f"/?token={TOKEN}{f'&actions={actions}' if actions else ''}")
        self.cookie = "; ".join(self.given)
        return self

    def act(self, page: str, do: str, origin: str = OWN, *, kind: str = "run", **form: str) -> Answer:
        body = urlencode({"do": do, **form}).encode()
        return self.get(f"/{kind}/0/{page}/act", method="POST", body=body, **({"origin": origin} if origin else {}))


@pytest.fixture
def visitor(root: Path) -> Visitor:
    page_run(root, "digits-aaaaaa", RECORDS, log="first line\nsecond <b>line\n")
    page_run(root, "digits-bbbbbb", RECORDS, failure="ValueError: bad", traceback="T: bad", created=1_795_193_600.0)
    (root / "runs" / "broken-cccccc").mkdir()
    return Visitor(root).let_in()


WAYS = ("/", "/?part=rows", "/run/0/digits-aaaaaa", "/run/0/digits-aaaaaa/curves.json", "/run/0/digits-aaaaaa/logs", "/compare",
        "/schedules", "/schedule/0/nightly", "/models", "/model/0/digits", "/sweeps", "/sweep/0/search",
        "/assets/page.js", "/nowhere")  # fmt: skip


def test_every_view_needs_the_token_of_the_printed_url_or_the_cookie_made_from_it(visitor: Visitor) -> None:
    for way in WAYS:
        assert visitor.get(way, cookie="").status == 403
        assert visitor.get(way, cookie=f"podlift-ui-{PORT}={TOKEN}; x=y").status == 403
        assert visitor.get(f"{way}{'&' if '?' in way else '?'}token=wrong", cookie="").status == 403
    answer = visitor.get(f"/run/0/digits-aaaaaa?part=live&token={TOKEN}", cookie="")
    assert (answer.status, answer.headers["location"]) == (303, "/run/0/digits-aaaaaa?part=live")
    cookie = answer.headers["set-cookie"].lower()
    holds(cookie, "httponly", "samesite=strict")
    assert TOKEN not in cookie
    assert visitor.get("/run/0/digits-aaaaaa").status == 200


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"hosts": ("evil.example",)}, 403),
        ({"hosts": ("127.0.0.1.evil.example",)}, 403),
        ({"hosts": ("127.0.0.1", "evil.example")}, 403),
        ({"hosts": ()}, 403),
        ({"hosts": ("[",)}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"method": "POST"}, 405),
        ({"origin": OWN}, 200),
        ({"hosts": ("localhost:1234",)}, 200),
        ({"hosts": ("[::1]:1234",)}, 200),
        ({"method": "HEAD"}, 200),
    ],
)
def test_foreign_hosts_foreign_origins_and_writes_are_refused_even_with_the_cookie(visitor, asked, status: int) -> None:
    answer = visitor.get("/", **asked)
    assert answer.status == status
    assert (status == 405) == ("read-only" in answer.text)


def test_every_answer_forbids_foreign_and_inline_scripts(visitor: Visitor) -> None:
    for way in WAYS:
        for cookie in ({}, {"cookie": ""}):
            headers = visitor.get(way, **cookie).headers
            policy = "default-src 'none'; script-src 'self'; style-src 'self'"
            assert headers["content-security-policy"].startswith(policy)
            assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    for way in WAYS[:10]:
        for tag, names in Elements(visitor.get(way).text).found:
            assert "style" not in (tag, *names)
            assert tag != "script" or names in (("src",), ("type", "id"))
            assert not [name for name in names if name.startswith("on")]


def test_the_first_answer_holds_the_rows_and_a_damaged_run_has_one_with_the_reason(visitor: Visitor, root) -> None:
    text = visitor.get("/").text
    holds(text, 'href="/run/0/digits-aaaaaa"', 'href="/run/0/digits-bbbbbb"', "3 of 3 runs", "UNREADABLE")
    holds(text, "is not a run of podlift", 'hx-trigger="every')
    for _ in range(5):
        part = visitor.get("/?part=rows&q=digits&state=FAILED").text
    assert part.startswith('<section id="list"') and "1 of 3 runs" in part
    assert visitor.sources.listed == {str(root): 1}, "many tabs read a root once"


def test_known_runs_are_shown_while_another_tab_waits_for_an_answer(visitor: Visitor, monkeypatch) -> None:
    monkeypatch.setattr(server, "_FRESH_S", 0.0)
    visitor.get("/")
    asked, go, read = threading.Event(), threading.Event(), visitor.sources.runs

    def slow(root: str):
        asked.set()
        assert go.wait(20)
        return read(root)

    monkeypatch.setattr(visitor.sources, "runs", slow)
    waiting = threading.Thread(target=visitor.get, args=("/",))
    waiting.start()
    try:
        assert asked.wait(20)
        assert "3 of 3 runs" in visitor.get("/").text
        assert waiting.is_alive()
    finally:
        go.set()
        waiting.join()


def test_a_runs_page_begins_with_why_and_asks_again_only_while_the_run_may_change(visitor: Visitor, root: Path) -> None:
    text = visitor.get("/run/0/digits-bbbbbb").text
    at = [text.index(part) for part in ('class="state failed"', "Root cause", "podlift logs digits-bbbbbb", "Timeline")]
    assert at == sorted(at) and "hx-trigger" not in text
    chart = visitor.get("/run/0/digits-bbbbbb/curves.json").text
    assert json.loads(chart)[0]["series"][0]["value"][:2] == [1, 0.5]
    run = page_run(root, "live-dddddd", RECORDS)
    for path in Path(run.events).glob("*.final.json"):
        path.unlink()
    # Its supervisor is not of this boot of the machine, so that it may still be anywhere: it is LOST, or goes on.
    live = visitor.get("/run/0/live-dddddd?part=live").text
    assert live.startswith('<main id="live"')
    assert ("hx-trigger" in live) == ("LOST" not in live)


def test_a_run_that_disappears_says_so_and_a_damaged_one_names_the_damage(visitor: Visitor, root: Path) -> None:
    run = page_run(root, "gone-dddddd")
    next(Path(run.events).glob("*.final.json")).write_text("no")
    holds(visitor.get("/run/0/gone-dddddd").text, "The run is damaged.", "hx-trigger")
    shutil.rmtree(run.url)
    page = Visitor(root).let_in().get("/run/0/gone-dddddd?part=live")
    assert page.status == 200
    holds(page.text, "No such run", lacks=["hx-trigger"])


@pytest.mark.parametrize(
    "name", ["..", ".hidden", "..%2f..%2fetc", "%2fetc%2fpasswd", "digits-aaaaaa%2f..%2f..", "%00", "a" * 3000]
)
def test_a_name_leads_to_no_other_place(visitor: Visitor, name: str) -> None:
    for way in ("/run/0/{0}", "/run/7/{0}", "/run/0/{0}/logs", "/compare?run=0/{0}&run=x/{0}&run=9/{0}"):
        way = way.format(name)
        answer = visitor.get(way)
        assert answer.status in (200, 307, 404)
        holds(answer.text, lacks=["SUCCEEDED", "root:"])
        if name in ("..", ".hidden") or way.startswith("/run/7"):
            assert answer.status != 200 or "No such run" in answer.text
    assert visitor.get(f"/assets/{name}").status in (307, 404)


def test_logs_are_searched_and_their_content_is_text(visitor: Visitor) -> None:
    holds(visitor.get("/run/0/digits-aaaaaa/logs").text, "first line", "second &lt;b&gt;line")
    found = visitor.get("/run/0/digits-aaaaaa/logs?q=SECOND&task=chief-0&attempt=1").text
    holds(found, "second &lt;b&gt;line", lacks=["first line"])
    assert "no attempt 7" in visitor.get("/run/0/digits-aaaaaa/logs?q=x&attempt=7").text
    assert "no task" in visitor.get("/run/0/digits-aaaaaa/logs?q=x&task=nobody").text
    assert "No such run" in visitor.get("/run/0/nothing-aaaaaa/logs").text


def test_runs_are_compared_and_one_that_is_not_there_has_the_reason(visitor: Visitor) -> None:
    text = visitor.get("/compare?run=0/digits-aaaaaa&run=0/digits-bbbbbb&run=0/nothing-aaaaaa").text
    holds(text, "The same in all of them.", "No such run")
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert [each["run"] for each in data[0]["series"]] == ["digits-aaaaaa", "digits-bbbbbb"]


def test_hostile_runs_are_text_on_their_pages(root: Path) -> None:
    def made(name: str, texts: tuple[str, ...]):
        records = [{"step": 1, "metrics": dict.fromkeys((text or "none" for text in texts), 1.0)}]
        joined = "\n".join(texts)
        args = {text: text for text in (texts[0], texts[18])}
        page_run(root, name, records, failure=joined, traceback=joined, log=joined + "\n", args=args)
        visitor = Visitor(root).let_in()
        ways = ("", "/logs", f"/logs?q={quote(texts[0])}")
        assert len(json.loads(visitor.get(f"/run/0/{name}/curves.json").text)) == len({*texts})
        pages = ["/?sort=run", *(f"/run/0/{name}{way}" for way in ways)]
        found = [Elements(visitor.get(page).text).found for page in pages]
        shutil.rmtree(root)
        return found

    plain = tuple(f"plain {at}" for at in range(len(HOSTILE)))
    assert made("hostile-bbbbbb", HOSTILE) == made("plain-aaaaaa", plain)


def of(text: str, names: str) -> dict[str, str]:
    """Return fields that all have one text."""
    return dict.fromkeys(names.split(), text)


def test_hostile_schedules_models_and_sweeps_are_text_on_their_pages(root: Path) -> None:
    model = page_model(root, "digits", [0.9, 0.95], ["digits-aaaaaa", "digits-bbbbbb"])
    seen = models.look(model)
    evidence = seen.versions[-1].evidence

    def made(text: str) -> list[Counter]:
        firing = Firing(time=1.0, registered=Registered(model=text, version=1), **of(text, "state reason cause run"))
        pairs = {"arguments": [(text, text)], "rules": [(text, text)], "problems": [text]}
        about = of(text, "name cron time_zone state backend paused program")
        schedule = ScheduleView(coming=[2.0], firings=[firing], **about, **pairs)
        guard = GuardResult(guard=text, holds=None, value=1.0, bound=1.0, note=text)
        measured = {"metrics": {text: 1.0}, "champion_metrics": {text: 2.0}, "guards": (guard,)}
        judged = replace(evidence, reason=text, gate=replace(evidence.gate, evaluate="a:b"), **measured)
        records = [replace(each.record, run=text, ask=text) for each in seen.versions]
        about = {"schedule": text, "evidence": judged}
        versions = [replace(each, record=of_it, **about) for each, of_it in zip(seen.versions, records, strict=True)]
        moves = [replace(move, note=text, by=text) for move in seen.moves]
        view = replace(seen, name=text, metric=text, versions=versions, moves=moves, problems=[text])
        about = {"params": {text: text}, "curve": {1: 1.0, 2: 0.5}, **of(text, "state run why")}
        trial = sweeps.TrialView(number=0, value=1.0, **about)
        axis = sweeps.Axis(name=text, options=[text])
        drawn = {"trials": [trial], "best": trial, "steps": [(0, 1.0)], "axes": [axis]}
        swept = sweeps.SweepView(of=1, done=1, begun=1, **drawn, **of(text, "name state why metric program"), **pairs)
        shared = {"problems": [text], "roots": [text], "now": 1.0, "refresh": 3, "acts": True, "root": 0, "at": "/"}
        shown = [Elements(pages.sweep_report(swept, 1.0)).found]
        for name, each in {"schedule": schedule, "model": view, "sweep": swept}.items():
            for template, about in ((f"{name}s", {"rows": [(0, each)]}), (name, {"view": each, "click": "a"})):
                shown.append(Elements(pages.render(f"{template}.html", **shared, **about)).found)
        return shown

    plain = made("plain")
    for text in HOSTILE:
        assert made(text or "none") == plain, text


@pytest.fixture
def done(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The actions on a run that has failed."""
    page_run(root, "digits-bbbbbb", RECORDS, failure="ValueError: bad", traceback="T: bad")
    found = list[str]()
    monkeypatch.setattr(sdk.Run, "cancel", lambda self: found.append("cancel"))
    monkeypatch.setattr(sdk.Run, "resume", lambda self: found.append("resume") or "the code is the same")
    return found


def test_only_the_second_token_shows_the_actions_and_does_them(root: Path, done: list[str]) -> None:
    page, where = Visitor(root, acting="second"), "/run/0/digits-bbbbbb"
    assert "Actions" in page.let_in("second").get(where).text
    answer = page.act("digits-bbbbbb", "resume")
    assert (answer.status, answer.headers["location"], done) == (303, where, ["resume"])
    assert page.act("digits-bbbbbb", "cancel").status == 303
    # A page without the flag has no second token.
    for visitor, tokens, status in ((page, ("", "wrong", TOKEN), 403), (Visitor(root), ("", "second"), 405)):
        for token in tokens:
            visitor.cookie = ""
            assert "Actions" not in visitor.let_in(token).get(where).text
            assert visitor.act("digits-bbbbbb", "cancel").status == status
    assert done == ["resume", "cancel"]


def test_an_action_needs_the_origin_of_the_page_and_a_post(root: Path, done: list[str]) -> None:
    page = Visitor(root, acting="second").let_in("second")
    for origin in ("", "null", "http://evil.example", "http://127.0.0.1:9999", "https://127.0.0.1:8000"):
        assert page.act("digits-bbbbbb", "cancel", origin).status == 403
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        assert page.get("/run/0/digits-bbbbbb/act?do=cancel", method=method, origin=OWN).status == 405
    assert page.act("digits-bbbbbb", "cancel", "http://127.0.0.1:8000", name="x" * 20_000).status == 413
    assert done == []


def test_an_action_that_fails_says_why_and_a_checkpoint_is_pinned(root: Path, done: list[str]) -> None:
    page = Visitor(root, acting="second").let_in("second")
    store = PosixStore(root / "runs" / "digits-bbbbbb" / "store")
    attempt = Attempt(store, run_id="digits-bbbbbb")
    key = attempt.save(3)
    attempt.close()
    assert page.act("digits-bbbbbb", "pin", checkpoint=key, name="best").status == 303
    assert restore.pins(store) == {"best": key}
    assert "step 3" in page.get("/run/0/digits-bbbbbb").text
    for form, sentence in (
        ({"do": "pin", "checkpoint": key, "name": "Not Good"}, "Invalid name of a pin"),
        ({"do": "pin", "checkpoint": "no", "name": "x"}, "There is no such checkpoint"),
        ({"do": "<b>"}, "Unknown action. Received: &#39;&lt;b&gt;&#39;"),
    ):
        answer = page.act("digits-bbbbbb", **form)
        assert answer.status == 409
        holds(answer.text, "Nothing was done.", sentence)
    assert "No such run" in page.act("nothing-aaaaaa", "cancel").text


def test_a_bucket_with_expired_credentials_is_named_and_shown_again_once_renewed(root, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(server, "_FRESH_S", 0.0)
    page_run(root, "digits-aaaaaa", RECORDS, log="first line\n")
    other = tmp_path / "other"
    page_run(other, "mnist-bbbbbb", RECORDS)
    page, expired = Visitor(root, other).let_in(), [False]

    def checked(call):
        def answer(self, place: str):
            if expired[0] and place.startswith(str(root)):
                raise sdk.PodliftError("Access to the bucket was denied. Next: gcloud auth application-default login.")
            return call(self, place)

        return answer

    monkeypatch.setattr(Runs, "runs", checked(Runs.runs))
    monkeypatch.setattr(Runs, "attach", checked(Runs.attach))
    assert "2 of 2 runs" in page.get("/").text
    expired[0] = True
    holds(page.get("/?part=rows").text, "1 of 1 runs", "gcloud auth application-default login")
    seen = page.get("/run/0/digits-aaaaaa?part=live").text
    holds(seen, "The run is not readable.", "gcloud auth application-default login")
    # It is asked again.
    assert "hx-trigger" in seen
    for way in ("logs", "lines?task=chief-0&attempt=1&after=0"):
        answer = page.get(f"/run/0/digits-aaaaaa/{way}")
        assert (answer.status, "gcloud auth application-default login" in answer.text) == (200, True)
    assert "hx-trigger" in answer.text
    expired[0] = False
    assert "2 of 2 runs" in page.get("/?part=rows").text
    assert "SUCCEEDED" in page.get("/run/0/digits-aaaaaa?part=live").text


def test_a_log_is_paged_and_followed_by_its_bytes(visitor: Visitor, root: Path) -> None:
    log = root / "runs" / "digits-aaaaaa" / "attempts" / "0001" / "logs" / "chief-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(1100)))
    text = visitor.get("/run/0/digits-aaaaaa/logs?task=chief-0").text
    holds(text, "line 1099", lacks=["line 599\n"])
    earlier = re.search(r'href="([^"]*before=\d+)"', text)
    assert earlier is not None
    holds(visitor.get(earlier[1].replace("&amp;", "&")).text, "line 599\n", lacks=["line 600\n"])
    # A page follows a run that goes on; a run that has ended says so.
    size = log.stat().st_size
    with log.open("a") as file:
        file.write("one more\nnot who")
    found = visitor.get(f"/run/0/digits-aaaaaa/lines?task=chief-0&attempt=1&after={size}").text
    holds(found, "one more", "The run has ended", lacks=["not who"])
    assert "no task" in visitor.get("/run/0/digits-aaaaaa/lines?task=nobody&after=0").text
    assert "hx-get" not in visitor.get("/run/0/nothing-aaaaaa/lines?task=chief-0&after=0").text


def test_a_missing_page_is_404_with_a_link(visitor: Visitor) -> None:
    lists = {f"/{kind}/0/nothing": f"/{kind}s" for kind in ("schedule", "model", "sweep")}
    runs = dict.fromkeys(("/run/0/nothing-aaaaaa", "/run/0/nothing-aaaaaa/logs", "/nowhere"), "/")
    for way, place in {**lists, **runs}.items():
        answer = visitor.get(way)
        assert (answer.status, f'<a href="{place}">Show all' in answer.text) == (404, True), way
    assert "No such run" in visitor.get("/run/0/nothing-aaaaaa").text
    assert "No such schedule below" in visitor.get("/schedule/0/nothing").text


def test_a_page_of_a_bucket_that_fails_says_so_and_is_asked_for_again(root: Path, monkeypatch) -> None:
    root.mkdir()

    def denied(self, root: str, name: str):
        raise sdk.PodliftError("Access to the bucket was denied.")

    page = Visitor(root).let_in()
    for kind in ("schedule", "model", "sweep"):
        monkeypatch.setattr(Runs, kind, denied)
        assert page.get(f"/{kind}/0/any").status == 502
        part = page.get(f"/{kind}/0/any?part=live")
        assert part.status == 200 and part.text.startswith('<main id="live"')
        holds(part.text, "Access to the bucket was denied.", "hx-trigger")


def test_arguments_are_columns_tiles_and_the_first_table_of_a_comparison(root: Path) -> None:
    page_run(root, "digits-aaaaaa", RECORDS, args=["--lr", "0.1", "--batch=64", "data"])
    page_run(root, "digits-bbbbbb", RECORDS, args={"lr": 0.02, "batch": 64})
    page = Visitor(root).let_in()
    rows = page.get("/?sort=arg.lr").text
    assert rows.index("digits-bbbbbb") < rows.index("digits-aaaaaa")
    assert "arg.lr" in rows
    assert "1 of 2 runs" in page.get("/?q=lr%3C0.05").text
    assert '<div class="argument"><dt>lr</dt><dd>0.1</dd></div>' in page.get("/run/0/digits-aaaaaa").text
    text = page.get("/compare?run=0/digits-aaaaaa&run=0/digits-bbbbbb").text
    assert text.index("<h2>Arguments</h2>") < text.index("<h2>Last values</h2>") < text.index("<h2>Curves</h2>")
    assert '<th scope="row">lr</th><td class="differs">0.1</td><td class="differs">0.02</td>' in text
    assert '<th scope="row">batch</th><td class="same">64</td><td class="same">64</td>' in text
    # The request follows from the settings.
    holds(text, "The same in all of them.", lacks=["workerPoolSpecs"])


@pytest.fixture
def registered(root: Path) -> tuple[list[str], Model]:
    """A schedule with a failure and a skipped slot, and a model with a version of each of its first runs."""
    states = ["SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "SKIPPED", "FAILED"]
    runs = page_schedule(root, "nightly", states, newest=NEWEST, max_cost_usd_per_month=60.0)
    return runs, page_model(root, "digits", [0.9, 0.95, 0.96], runs[:3], asks=True)


def test_a_row_of_a_schedule_has_its_firings_failures_and_the_cost_of_the_month(root, registered, monkeypatch) -> None:
    monkeypatch.setattr(SystemClock, "now", lambda self: datetime(2026, 11, 28, 12, tzinfo=timezone.utc).timestamp())
    page = Visitor(root).let_in()
    text = page.get("/schedules").text
    holds(text, "the last 5 firings: 1 failed, 1 skipped, 3 succeeded", "of 4 runs", "5.23 USD", "of 60.00 USD")
    assert 'datetime="2026-11-29T' in text
    run = registered[0][0]
    page_run(root, run, RECORDS)
    holds(page.get("/schedule/0/nightly").text, f'href="/run/0/{run}"', "data_changed(train)")
    assert 'href="/schedule/0/nightly"' in page.get(f"/run/0/{run}").text
    # All runs of a schedule have one label.
    assert "<option>nightly</option>" in page.get("/").text
    assert "1 of 1 runs" in page.get("/?label=nightly").text


def test_a_month_of_skips_hides_no_cost_and_allowed_secrets_are_on_no_page(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(SystemClock, "now", lambda self: datetime(2026, 11, 28, 12, tzinfo=timezone.utc).timestamp())
    code = json.loads((FINISHED_RUN / "plan.json").read_text())["job"]["code"]
    job = {"args": {"key": "hunter2"}, "code": {**code, "allow_secret": ["args"]}}
    states, apart = ["SUCCEEDED", *["SKIPPED"] * 120], timedelta(hours=1)
    page_schedule(root, "hourly", states, newest=NEWEST, apart=apart, job=job, max_cost_usd_per_month=5.0)
    page = Visitor(root).let_in()
    for way in ("/schedules", "/schedule/0/hourly"):
        text = page.get(way).text
        assert re.search(r"1\.\d\d USD<small>of 5\.00 USD", text)
        assert "hunter2" not in text


def test_a_model_has_its_champion_curve_and_table_of_its_gate_beside_a_damaged_one(root: Path, registered) -> None:
    runs, _ = registered
    page_model(root, "mnist", [0.5], ["mnist-aaaaaa"])
    next((root / "models" / "records" / "mnist" / "versions").glob("*.json")).write_text("no")
    page = Visitor(root).let_in()
    damage = "The record of version 1 of &#39;mnist&#39; is damaged"
    holds(page.get("/models").text, damage, 'href="/model/0/digits#version-2"')
    text = page.get("/model/0/digits").text
    assert "accuracy of the versions: version 1 0.9, version 2 0.95, version 3 0.96" in text
    holds(text, "Version 3 against version 2", "decides: more is better", "loss &lt;= champion * 1.05")
    holds(text, *(f'href="/run/0/{run}"' for run in runs[:3]), 'href="/schedule/0/nightly"')


def test_a_version_that_awaits_an_approval_without_an_evaluation_has_its_page(root: Path, tmp_path: Path) -> None:
    (tmp_path / "model.keras").write_bytes(b"weights")
    root.mkdir()
    Model(str(root), "digits").add(candidate(str(tmp_path), "digits-aaaaaa", run_url="x"), ask="look at it")
    holds(Visitor(root).let_in().get("/model/0/digits").text, "look at it", "awaits approval")


def test_a_champion_is_promoted_and_rolled_back_and_a_stale_page_is_refused(root, registered, monkeypatch) -> None:
    model, page = registered[1], Visitor(root, acting="second").let_in("second")
    assert "Promote a version" in page.get("/model/0/digits").text
    answer = page.act("digits", "promote", kind="model", version="3", expect="2", note="seen")
    assert (answer.status, answer.headers["location"]) == (303, "/model/0/digits")
    assert (model.champion().number, model.history()[-1].note) == (3, "seen")
    stale = page.act("digits", "promote", kind="model", version="1", expect="2")
    assert (stale.status, "Expected: version 2. It is version 3" in stale.text) == (409, True)
    assert page.act("digits", "rollback", kind="model", expect="2").status == 409
    assert page.act("digits", "rollback", kind="model", expect="3").status == 303
    assert model.champion().number == 2
    # Of two clicks at the same moment, the second one is refused.
    model.promote(3)
    read = Model.record

    def overtaken(self):
        answer = read(self)
        monkeypatch.setattr(Model, "record", read)
        model.rollback()
        return answer

    monkeypatch.setattr(Model, "record", overtaken)
    assert page.act("digits", "rollback", kind="model", expect="3").status == 409
    assert model.champion().number == 2
    for form in ({"do": "promote", "version": "3"}, {"do": "remove", "expect": "2"}):
        assert page.act("digits", kind="model", **form).status == 409
    assert page.act("digits", "promote", "http://evil.example", kind="model", version="3", expect="2").status == 403
    reader = Visitor(root, acting="second").let_in()
    assert "Promote a version" not in reader.get("/model/0/digits").text
    assert reader.act("digits", "promote", kind="model", version="3", expect="2").status == 403
    assert model.champion().number == 2


def test_a_schedule_is_paused_resumed_and_fired_on_the_page(root: Path, registered, monkeypatch) -> None:
    fired = []
    monkeypatch.setattr(Schedule, "run", lambda self: fired.append(self.name))
    page = Visitor(root, acting="second").let_in("second")
    assert page.act("nightly", "pause", kind="schedule").status == 303
    assert Schedule("nightly", root=root).record.paused == "by hand"
    holds(page.get("/schedule/0/nightly").text, "Resume the schedule", "Paused: by hand")
    assert page.act("nightly", "unpause", kind="schedule").status == 303
    assert Schedule("nightly", root=root).record.paused == ""
    for _ in range(2):
        (click,) = re.findall(r'name="click" value="(\w+)"', page.get("/schedule/0/nightly").text)
        for _ in range(2):
            done = page.act("nightly", "run", kind="schedule", click=click)
            assert done.headers["location"] == "/schedule/0/nightly"
    assert fired == ["nightly", "nightly"], "a double click fires once"
    assert page.act("nightly", "run", kind="schedule").status == 409
    assert page.act("nightly", "remove", kind="schedule").status == 409
    assert page.act("nothing", "pause", kind="schedule").status == 404
    assert page.act("nightly", "pause", kind="thing").status == 404
    reader = Visitor(root, acting="second").let_in()
    assert "Pause the schedule" not in reader.get("/schedule/0/nightly").text
    assert reader.act("nightly", "pause", kind="schedule").status == 403


def test_an_answer_from_before_an_action_is_not_shown_after_it(root: Path, registered, monkeypatch) -> None:
    page, read, acted = Visitor(root, acting="second").let_in("second"), Runs.schedule, threading.Event()
    began = threading.Event()

    def slow(self, root: str, name: str):
        view = read(self, root, name)
        began.set()
        assert acted.wait(30)
        return view

    monkeypatch.setattr(Runs, "schedule", slow)
    other = threading.Thread(target=lambda: page.get("/schedule/0/nightly"))
    other.start()
    assert began.wait(30)
    assert page.act("nightly", "pause", kind="schedule").status == 303
    acted.set()
    other.join()
    assert "Resume the schedule" in page.get("/schedule/0/nightly").text


def test_failures_without_a_run_are_failures() -> None:
    ends = (("FAILED", ""), ("LOST", ""), ("SUCCEEDED", "a"))
    firings = [Firing(time=1.0, state=state, run=run) for state, run in ends]
    found = ScheduleView(firings=firings, **of("", "name cron time_zone state backend"))
    assert (found.failures, found.runs) == (2, 3)


def test_a_damaged_schedule_or_slot_leaves_the_others_and_names_the_damage(root: Path, registered) -> None:
    for name in ("broken", "senseless", "weekly"):
        page_schedule(root, name, ["SUCCEEDED"] * 3, newest=NEWEST)
    records = root / "schedules"
    (records / "specs" / "broken.json").write_text("no")
    stored = PosixStore(records)
    data, generation = current(stored, "specs/senseless.json")
    stored.swap("specs/senseless.json", [data.replace(b"0 3 * * *", b"nonsense")], expected=generation)
    slots = sorted(path for path in (records / "slots" / "weekly").rglob("*Z") if path.is_file())
    slots[0].write_text("no")
    page = Visitor(root).let_in()
    text = page.get("/schedules").text
    assert "The schedule broken is not listed: The object" in text
    holds(text, "The schedule senseless is not shown: cron: expected five fields", 'href="/schedule/0/nightly"')
    assert "the last 3 firings: 2 succeeded, 1 unreadable" in text
    own = page.get("/schedule/0/weekly").text
    holds(own, "is damaged: its last line is not the one that was written", "The cost of this month is unknown")


def test_slots_that_have_not_changed_are_read_once(root: Path, registered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_FRESH_S", 0.0)
    page, read, asked = Visitor(root).let_in(), PosixStore.get, Counter[str]()

    def counted(self, key: str, **about):
        asked[key.partition("/")[0]] += 1
        return read(self, key, **about)

    page.get("/schedules")
    monkeypatch.setattr(PosixStore, "get", counted)
    assert "the last 5 firings" in page.get("/schedules").text
    assert "1.15 USD" in page.get("/schedule/0/nightly").text
    assert asked["slots"] == 0
    book = Book(str(root))
    record = book.read("nightly")
    book.note(record, book.keys(record)[0], "delivered again")
    asked.clear()
    assert "delivered again" in page.get("/schedule/0/nightly").text
    assert asked["slots"] == 1


@pytest.fixture
def swept(root: Path) -> list[Any]:
    """The trials of a sweep: 9, 1, 3, 9, 1 and 3 epochs, of which the last one goes on."""
    return page_sweep(root, "search", 6, of=8, end="", max_cost_usd=12.0)


def test_empty_pages_name_the_next_step_and_the_header_names_sweeps_if_there_are_any(root: Path) -> None:
    root.mkdir()
    page = Visitor(root).let_in()
    holds(page.get("/").text, "podlift submit train.py", lacks=[">Sweeps</a>"])
    holds(page.get("/models").text, "podlift models add latest", lacks=[">Sweeps</a>"])
    assert "podlift schedule create weekly train.py" in page.get("/schedules").text
    assert "podlift sweep create train.py" in page.get("/sweeps").text
    page_sweep(root, "search", 1)
    page = Visitor(root).let_in()
    for way in ("/", "/schedules", "/models", "/nowhere"):
        assert '<a href="/sweeps">Sweeps</a>' in page.get(way).text
    assert '<a href="/sweeps" aria-current="page">Sweeps</a>' in page.get("/sweeps").text


def test_a_bucket_that_does_not_answer_holds_no_page_of_another_root(root: Path, tmp_path: Path, monkeypatch) -> None:
    page_run(root, "local-aaaaaa", RECORDS)
    shown, any_sweep, silent = threading.Event(), Runs.has_sweeps, tmp_path / "silent"
    answered = list[str]()

    def asked(self, place: str) -> bool:
        if place == str(silent):
            shown.wait(20)
            answered.append(place)
        return any_sweep(self, place)

    monkeypatch.setattr(Runs, "has_sweeps", asked)
    page = Visitor(root, silent).let_in()
    try:
        assert ">Sweeps</a>" not in page.get("/run/0/local-aaaaaa").text
        assert answered == []
    finally:
        shown.set()


def test_without_optuna_no_sweep_is_damaged(root: Path, swept: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation.util, "find_spec", lambda name: None)
    page_run(root, swept[2].run, RECORDS)
    page = Visitor(root).let_in()
    for way in ("/sweeps", "/sweep/0/search"):
        holds(page.get(way).text, "Next: pip install &#39;podlift[sweep]&#39;", lacks=["damaged"])
    assert "A trial of the sweep" in page.get(f"/run/0/{swept[2].run}").text


def test_a_sweep_shows_its_best_arguments_its_charts_and_each_trial(root: Path, swept: list[Any]) -> None:
    page, best = Visitor(root).let_in(), max(swept[0], swept[3], key=lambda each: each.value)
    rows, own = page.get("/sweeps").text, page.get("/sweep/0/search").text
    cost = f"{0.04 * (9 + 1 + 3 + 9 + 1):.2f} USD"
    holds(rows, 'href="/sweep/0/search"', f"{best.value:.5g}", f"<b>{best.params['lr']:.4g}</b>")
    holds(rows, "5 of 8", cost, "of 12.00 USD")
    assert f"<dt>lr of the best</dt><dd>{best.params['lr']:.4g}</dd>" in own
    assert f"best val_accuracy so far: {swept[0].value:.5g} from trial 0" in own
    assert "val_accuracy by epoch of 6 trials, until epoch 9" in own
    assert "dropout, lr, optimizer, units, val_accuracy of 6 trials; the table below has the same numbers" in own
    holds(own, "podlift sweep resume search", "not among the best third after 3 epochs")
    # Trials that were stopped early are dashed, in both charts.
    assert own.count(" stopped-early") == 2 * sum(each.state == "PRUNED" for each in swept)
    for each in swept:
        row = own.partition(f'<tr id="trial-{each.number}"')[2].partition("</tr>")[0]
        holds(row, f'<span class="state {each.state.lower()}">{each.state.lower()}</span>', f'href="/run/0/{each.run}"')
        assert row.index(f"{each.params['lr']:.4g}") < row.index(f"{each.value:.5g}") < row.index(each.run)


def test_a_run_of_a_readable_sweep_links_it_and_another_run_of_that_form_does_not(
    root: Path, swept: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(self, name: str):
        raise StoreError("the sweeps are denied")

    page_run(root, swept[2].run, RECORDS)
    page_run(root, "search-002-aaaaaa", RECORDS)
    page = Visitor(root).let_in()
    linked = 'A trial of the sweep <a class="id" href="/sweep/0/search">search</a>'
    assert linked in page.get(f"/run/0/{swept[2].run}").text
    assert "A trial of the sweep" not in page.get("/run/0/search-002-aaaaaa").text
    # All runs of a sweep have one label.
    assert "<option>search</option>" in page.get("/").text
    monkeypatch.setattr(sweep_records.Book, "find", denied)
    assert '<span class="state succeeded">' in Visitor(root).let_in().get(f"/run/0/{swept[2].run}").text


def test_a_look_at_sweeps_reads_new_records_only_and_writes_nothing(root: Path, swept: list[Any], monkeypatch) -> None:
    page_sweep(root, "ended", 5)
    monkeypatch.setattr(server, "_FRESH_S", 0.0)
    page, read, asked = Visitor(root).let_in(), PosixStore.get, list[str]()

    def counted(self, key: str, **about):
        asked.append(key)
        return read(self, key, **about)

    page.get("/sweeps")
    page.get("/sweeps")  # trials are read before the end: the look after it has all
    with monkeypatch.context() as patch:
        patch.setattr(PosixStore, "get", counted)
        patch.setattr(PosixStore, "swap", None)
        patch.setattr(PosixStore, "put_new", None)
        text = page.get("/sweeps").text
    holds(text, "5 of 8", "5 of 5")
    # Only of the sweep that goes on, and the place of the next object of its journal.
    assert [key for key in asked if "ended" in key] == []
    assert Counter(key.split("/")[0] for key in asked)["journals"] == 1
    study = Study(sweep_records.Book(str(root)).store, sweep_records.Book(str(root)).read("search"))
    study.tell(study.trials()[5], "COMPLETE")
    assert "6 of 8" in page.get("/sweeps").text
    assert "6 of 8" in page.get("/sweep/0/search").text


@pytest.mark.parametrize("kind", ["trial", "value", "study"])
def test_a_damaged_part_of_a_sweep_leaves_the_others_and_names_the_damage(root: Path, swept, kind: str) -> None:
    book = sweep_records.Book(str(root))
    prefix = f"journals/{book.read('search').id}/logs/"
    logs = {stat.key: json.loads(bytes(book.store.get(stat.key)))["logs"] for stat in book.store.list(prefix)}
    codes = {"trial": 4, "value": 7, "study": 0}
    key = [each for each, found in logs.items() if found[0]["op_code"] == codes[kind]][3 if kind == "trial" else 0]
    (root / "sweeps" / key).write_text("no")
    text = Visitor(root).let_in().get("/sweep/0/search").text
    assert key in text
    assert "The other trials are shown." in text
    rows = {each.number: text.partition(f'<tr id="trial-{each.number}"')[2].partition("</tr>")[0] for each in swept}
    whole = {each.number: (each.run, f"{each.value:.5g}") for each in swept}
    shown = [number for number, parts in whole.items() if all(part in rows[number] for part in parts)]
    # An object has all points of a curve that were read at once.
    assert shown == [each.number for each in swept if kind != "value" or each.number > 0]
    assert ("a part of its record is damaged" in text) == (kind == "trial")


def test_a_damaged_sweep_leaves_the_others_and_names_the_damage(root: Path, swept: list[Any]) -> None:
    page_sweep(root, "broken-one", 2)
    (root / "sweeps" / "specs" / "broken-one.json").write_text("no")
    page = Visitor(root).let_in()
    holds(page.get("/sweeps").text, "5 of 8", '<span class="state damaged">', "specs/broken-one.json")
    assert page.get("/sweep/0/broken-one").status == 200


def test_charts_of_a_sweep_have_a_place_for_every_value() -> None:
    lr = sweeps.Axis(name="lr", low=1e-4, high=1e-2, log=True)
    assert [lr.place(value) for value in (1e-4, 1e-3, 1e-2, "text")] == [0.0, pytest.approx(0.5), 1.0, None]
    kind = sweeps.Axis(name="kind", options=["1.5", None, 1.5, "a"])
    assert [kind.place(value) for value in ("1.5", None, 1.5, "b")] == [0.125, 0.375, 0.625, None]
    for count, marks in ((12, 12), (13, 7), (100, 12)):
        assert len(sweeps.Axis(name="many", options=range(count)).marks()) == marks
    one = sweeps.TrialView(number=0, state="complete", params={"lr": 1e-3}, value=0.5, curve={1: 0.5})
    about = {"name": "one", "state": "done", "metric": "loss", "begun": 1}
    seen = sweeps.SweepView(trials=[one], best=one, steps=[(0, 0.5)], axes=[lr], **about)
    assert seen.curves() is None, "one epoch is no curve"
    far = [replace(one, number=at, value=value, curve={1: value, 2: 0.0}) for at, value in enumerate((-1e308, 1e308))]
    for each in (seen, replace(seen, trials=far, best=far[0], steps=[(0, -1e308)], begun=2)):
        assert "nan" not in pages.render("_sweep.html", view=each, problems=[], at="/", root=0, refresh=1)
    better = [sweeps.TrialView(number=at, state="complete", value=value) for at, value in enumerate((0.9, 0.5, 0.7))]
    less = replace(seen, mode="min", trials=better)
    assert [less.shade(each) for each in better] == [0, 5, 2]


def test_a_preemption_is_said_where_it_happened(root: Path) -> None:
    records = [{"step": step, "epoch": step // 20, "metrics": {"loss": 1.0}} for step in (20, 40, 60)]
    preempt(page_run(root, "digits-aaaaaa", records), 60.0, 40, 120.0)
    text = Visitor(root).let_in().get("/run/0/digits-aaaaaa").text
    assert "The machine of worker-0 was taken away (preempted)." in text
