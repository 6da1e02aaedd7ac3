"""The page with many runs, in a folder and in a bucket; a run with 100,000 points; and a report of it."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from pathlib import Path

import sdk
from sdk import api
from sdk.clock import SystemClock
from sdk.spec.layout import RootPaths
from sdk.ui import gather, pages, server

from . import listing, measure
from .regressions import Section

TITLE = "Pages"
_POINTS = 100_000
_TARGETS = {1_000: 200.0, 10_000: 1000.0}


class _Runs:
    def runs(self, root: str) -> tuple[list[sdk.RunInfo], list[str]]:
        return api.list_runs(root, None, None, (), None)

    def attach(self, url: str) -> sdk.Run:
        return api.attach(url)


def run(count: int) -> Section:
    """Return the section."""
    rows: list[tuple[str, float, float | None, str]] = []
    with tempfile.TemporaryDirectory() as folder, listing._inside(f"{folder}/project"):
        Path("train.py").write_text("print(1)")
        for number, target in _TARGETS.items():
            root = RootPaths(f"{folder}/root-{number}")
            plan = sdk.plan("train.py", workers=2, root=root.root)
            for at in range(number):
                _trained(root.run(listing._id(at)), plan, failed=at % 5 == 0)
            took = measure.seconds(count, lambda root=root: _asked(root.root, "/")) * 1000
            rows.append((f"the list of {number:,} runs", took, target, "ms"))
        for query in ("/?sort=metric", "/?q=loss<0.5+digits&state=FAILED"):
            took = measure.seconds(count, lambda query=query: _asked(root.root, query)) * 1000
            rows.append((f"10,000 runs, `{query}`", took, 1000.0, "ms"))
        place = root.run(listing._id(1))
        _long(Path(place.metrics(1, "chief-0")))
        took = measure.seconds(count, lambda: _asked(root.root, f"/run/0/{place.run_id}")) * 1000
        rows.append((f"the page of a run with {_POINTS:,} points of each of three metrics", took, None, "ms"))
        painted = [_painted(root.root, f"/run/0/{place.run_id}") for _ in range(count)]
        rows.append(("the same in Chromium, until its curves are drawn", sorted(painted)[count // 2], None, "ms"))
        view = gather.look(api.attach(place.url), place.run_id, SystemClock())
        size = len(pages.report([view], None, time.time()).encode()) / 1000
        rows.append(("a report of it", size, 500.0, "kB"))
        whole = measure.seconds(count, lambda: api.list_runs(root.root, None, None, (), None))
        ratio = measure.seconds(count, lambda: _asked(root.root, "/")) / whole
    lines = ["| | | target |", "|---|---|---|"]
    lines += [
        f"| {name} | {value:.0f} {unit} | {'-' if target is None else f'{target:.0f} {unit}'} |"
        for name, value, target, unit in rows
    ]
    setting = "Server time, of a server that has answered nothing before. Each run has 2 tasks, 13 records and a curve."
    return Section(
        [*lines, "", f"Medians of {count}. {setting}"], {"the page, relative to sdk.runs(limit=None)": ratio}
    )


def _trained(paths, plan, *, failed: bool) -> None:
    metrics = Path(paths.metrics(1, "chief-0"))
    metrics.parent.mkdir(parents=True)
    record = {"epoch": 0, "metrics": {"loss": 0.5}}
    metrics.write_text("".join(json.dumps({**record, "time": 1.0 + at, "step": at + 1}) + "\n" for at in range(30)))
    listing._ended(paths, plan, failed=failed)


def _long(place: Path) -> None:
    with place.open("w") as file:
        for at in range(_POINTS):
            metrics = {"loss": 1 / (at + 1), "val_loss": 2 / (at + 1), "accuracy": at / _POINTS}
            file.write(json.dumps({"time": 1.0 + at, "step": at + 1, "epoch": 0, "metrics": metrics}) + "\n")


def _asked(root: str, target: str) -> int:
    """Ask for a page, without a socket, and return its length."""
    app, length = server.Pages([root], _Runs(), SystemClock()).app(), 0
    path, _, query = target.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "path": path,
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": [], "server": ("127.0.0.1", 1),
    }  # fmt: skip

    async def receive() -> dict:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        nonlocal length
        assert message.get("status", 200) == 200
        length += len(message.get("body", b""))

    asyncio.run(app(scope, receive, send))
    assert length
    return length


def _painted(root: str, place: str) -> float:
    """Return the milliseconds from the request until the browser has drawn a frame with the curves."""
    import threading

    from playwright.sync_api import sync_playwright

    urls: list[str] = []
    values = {"port": 0, "token": "the-token", "announce": urls.append}
    threading.Thread(target=server.serve, args=([root], _Runs(), SystemClock()), kwargs=values, daemon=True).start()
    while not urls:
        time.sleep(0.01)
    found = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(urls[0])
        page.goto(urls[0].partition("/?")[0] + place)
        page.locator("canvas").first.wait_for()
        drawn = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"
        took = float(page.evaluate(drawn))
        browser.close()
    return took
