"""The page with many runs, in a folder and in a bucket; a run with 100,000 points; and a report of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import sdk
from sdk import api
from sdk.cli.ui import PageSources
from sdk.clock import SystemClock
from sdk.job.layout import RootPaths
from sdk.job.plan import Plan
from sdk.records import summaries
from sdk.records.sync.index import in_parallel
from sdk.storage import cache
from sdk.ui import gather, pages, server

from . import listing, measure
from .gcs import emulator
from .regressions import Section

TITLE = "Pages"
_POINTS = 100_000
_TARGETS = {1_000: 200, 10_000: 1000}
_QUERIES = ("/?sort=metric", "/?q=loss<0.6+digits&state=SUCCEEDED")


def run(count: int) -> Section:
    """Return the section."""
    rows: list[tuple[str, str, str, str]] = []
    with tempfile.TemporaryDirectory() as folder, listing._inside(f"{folder}/project"):
        Path("train.py").write_text("print(1)")
        for number, target in _TARGETS.items():
            root = RootPaths(f"{folder}/root-{number}")
            _made(root, sdk.plan("train.py", workers=2, root=root.root), number)
            rows.append(_timed(count, f"the list of {number:,} runs", root.root, "/", target))
        ratio = _cpu(count, lambda: _asked(root.root, "/")) / _cpu(count, lambda: PageSources().runs(root.root))
        rows += [_timed(count, f"10,000 runs, `{query}`", root.root, query, 1000) for query in _QUERIES]
        place = root.run(listing._id(1))
        _long(Path(place.metrics(1, "chief-0")))
        page = f"/run/0/{place.run_id}"
        rows.append(
            _timed(count, f"the page of a run with {_POINTS:,} records of three metrics", root.root, page, None)
        )
        painted = sorted(_painted(root.root, page) for _ in range(count))[count // 2]
        rows.append(("the same, until Chromium has drawn its curves", f"{painted:.0f}", "", ""))
        view = gather.look(api.attach(place.url), place.run_id, SystemClock())
        size = len(pages.report([view], None, time.time()).encode()) / 1000
        rows += [_bucket(count, folder, number, target) for number, target in _TARGETS.items()]
    lines = ["| | wall, ms | CPU, ms | target, ms |", "|---|---|---|---|"]
    lines += [f"| {name} | {wall} | {cpu} | {target} |" for name, wall, cpu, target in rows]
    setting = (
        f"Medians of {count}; time of the server, which has remembered nothing. The runs are copies of an ended one. In the "
        "bucket each has its plan and its last record, and this machine has seen all of them before; the "
        f"CPU of the emulator is not counted. A report of the run with {_POINTS:,} records has {size:.0f} kB (target: 500 kB)."
    )
    return Section([*lines, "", setting], {"CPU of the page, relative to sdk.runs(limit=None)": ratio})


def _timed(count: int, name: str, root: str, target: str, most: int | None) -> tuple[str, str, str, str]:
    _asked(root, target)
    wall = measure.seconds(count, lambda: _asked(root, target)) * 1000
    cpu = _cpu(count, lambda: _asked(root, target)) * 1000
    return name, f"{wall:.0f}", f"{cpu:.0f}", "-" if most is None else str(most)


def _cpu(count: int, work: Callable[[], object]) -> float:
    """Return the CPU seconds of this process."""
    found = []
    for _ in range(count):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return sorted(found)[count // 2]


def _made(root: RootPaths, plan: Plan, number: int) -> None:
    """Make one ended run, and copies of it with other ids."""
    first = root.run(listing._id(0))
    metrics = Path(first.metrics(1, "chief-0"))
    metrics.parent.mkdir(parents=True)
    record = {"epoch": 1, "metrics": {"loss": 0.5}}
    metrics.write_text("".join(json.dumps({**record, "time": 1.0 + at, "step": at + 1}) + "\n" for at in range(30)))
    listing._ended(first, plan, failed=False)
    known, text = summaries.read(first), Path(first.plan).read_text()
    final = next(Path(first.events).glob("*.final.json"))
    assert known is not None
    for at in range(1, number):
        paths = root.run(listing._id(at))
        Path(paths.metrics(1, "chief-0")).parent.mkdir(parents=True)
        Path(paths.events).mkdir()
        Path(paths.plan).write_text(text.replace(first.run_id, paths.run_id))
        shutil.copy(final, paths.events)
        summaries.write(paths, known._replace(shown=replace(known.shown, place="local", best=at / number)))


def _bucket(count: int, folder: str, number: int, target: int) -> tuple[str, str, str, str]:
    """Measure the list of a bucket whose runs this machine has copies of."""
    with emulator() as gcs:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache-{number}"
        root, bucket = "gs://bucket/podlift", gcs.client().bucket("bucket")
        here = RootPaths(cache.bucket_folder(cache.cache_folder(os.environ), root))
        _made(here, sdk.plan("train.py", workers=2, root=f"{folder}/other"), number)
        files = []
        for at in range(1, number):
            paths = here.run(listing._id(at))
            final = next(Path(paths.events).glob("*.final.json"))
            files += [(f"podlift/runs/{paths.run_id}/plan.json", paths.plan)]
            files += [(f"podlift/runs/{paths.run_id}/events/{final.name}", str(final))]
        in_parallel(lambda file: bucket.blob(file[0]).upload_from_filename(file[1]), files, threads=8)
        return _timed(count, f"the list of {number:,} runs in a bucket of the emulator", root, "/", target)


def _long(place: Path) -> None:
    with place.open("w") as file:
        for at in range(_POINTS):
            metrics = {"loss": 1 / (at + 1), "val_loss": 2 / (at + 1), "accuracy": at / _POINTS}
            file.write(json.dumps({"time": 1.0 + at, "step": at + 1, "epoch": 1, "metrics": metrics}) + "\n")


def _asked(root: str, target: str) -> int:
    """Ask for a page, without a socket, and return its length."""
    app, length = server.Pages([root], PageSources(), SystemClock()).app(), 0
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
    threading.Thread(
        target=server.serve, args=([root], PageSources(), SystemClock()), kwargs=values, daemon=True
    ).start()
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
