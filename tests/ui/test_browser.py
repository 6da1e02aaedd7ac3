"""Pages as a user sees them: Debian's Chromium, driven by Playwright, without a window.

`--pictures` writes the pictures of the documentation (docs/images) anew.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from page_runs import HOSTILE, gallery, page_run
from support import LIMIT_S, REPO, holds, needs, until

import sdk
from sdk.cli import app
from sdk.cli.ui import PageSources
from sdk.clock import SystemClock
from sdk.records.recorder import read_events

needs("starlette", "uvicorn", "optuna", "playwright", "axe_playwright_python", "PIL")

from sdk.ui import server  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed: pages are not opened in a browser"),
]
# As root, Chromium has no sandbox; it opens podlift's pages only.
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
SECONDS = LIMIT_S * 1000
# Pages with tables that have another layout there.
ON_A_PHONE = ("list", "schedules", "schedule", "models", "model", "sweeps", "sweep")
# Whether a page needs no sideways scrolling.
FITS = "document.documentElement.scrollWidth <= window.innerWidth"
# A script of a run that ran would leave its mark.
OWNED = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
TRACE = """Traceback (most recent call last):
  File "/somewhere/attempts/0001/tasks/chief-0/code/train.py", line 41, in <module>
    model.fit(data, epochs=20)
  File "/usr/lib/python3.11/site-packages/keras/src/trainers/trainer.py", line 122, in fit
    logs = self.train_function(iterator)
  File "/somewhere/attempts/0001/tasks/chief-0/code/losses.py", line 7, in loss
    raise ValueError("the loss is not finite: lower the learning rate")
ValueError: the loss is not finite: lower the learning rate
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open a page: `opened(url, width=PHONE, dark=True)`. None of them may ask another host, or fail in a script."""
    contexts, asked, failed = list[Any](), list[str](), list[str]()

    def open_page(
        url: str, size: Any = WIDE, *, dark: bool = False, missing: bool = False, zone: str = "UTC", **more: Any
    ):
        look = {"color_scheme": "dark" if dark else "light", "reduced_motion": "reduce", "timezone_id": zone}
        context = chromium.new_context(viewport=size, **look, **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SECONDS)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        # A browser reports a page that is missing, too.
        page.on("console", lambda said: failed.append(said.text) if said.type == "error" and not missing else None)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [url for url in asked if not re.match(r"http://127\.0\.0\.1:\d+/|file://|data:", url)] == []
    assert failed == []


@pytest.fixture
def served(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Serve the root from this process, and return the URL of a page: `served("/run/0/digits-aaaaaa")`."""
    monkeypatch.setattr(server, "_FRESH_S", 0.0)
    monkeypatch.setattr(server, "REFRESH_S", 1)
    urls = list[str]()

    def url(place: str = "/") -> str:
        if not urls:
            values = {"port": 0, "token": "the-token", "announce": urls.append}
            serve = partial(server.serve, [str(root)], PageSources(), SystemClock(), **values)
            threading.Thread(target=serve, daemon=True).start()
            until(lambda: urls)
        return at(urls[0], place)

    return url


@pytest.fixture
def command(root: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], list[str]]]]:
    """Serve the root as a user does: `podlift ui`. Return the process and the URLs that it prints."""
    started = list[subprocess.Popen[str]]()

    def start(*flags: str) -> tuple[subprocess.Popen[str], list[str]]:
        root.mkdir(exist_ok=True)
        ui = [sys.executable, "-m", "sdk", "ui", str(root), *flags]
        process = subprocess.Popen(ui, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        started.append(process)
        assert process.stdout is not None
        return process, [process.stdout.readline().strip() for _ in range(2 if "--allow-actions" in flags else 1)]

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=LIMIT_S)


def at(url: str, place: str) -> str:
    return url.replace("/?", f"{place}{'&' if '?' in place else '?'}")


def losses(count: int, worse: float = 0.0) -> list[dict[str, Any]]:
    return [
        {"step": step, "epoch": step // 20 + 1, "time": 1_795_193_567.0 + step,
         "metrics": {"loss": 2.2 * 0.97**step + worse, "val_loss": 2.3 * 0.97**step + 0.1 + worse, "acc": 1 - 0.9 * 0.98**step}}
        for step in range(1, count + 1)
    ]  # fmt: skip


@pytest.mark.full
def test_a_report_draws_its_curves_offline_and_runs_nothing_of_the_run(root: Path, tmp_path: Path, opened) -> None:
    # Chromium cannot show what UTF-8 lacks.
    names = [name for name in HOSTILE if name and name != "\ud800"] + [OWNED]
    records = [{"step": step, "metrics": dict.fromkeys(names, 1 / step)} for step in (1, 2, 3)]
    page_run(root, "hostile-aaaaaa", records, failure=OWNED, traceback=OWNED, log="\n".join([*names, ""]))
    place = tmp_path / "report.html"
    assert app.run(["export", "html", "hostile-aaaaaa", "-o", str(place)]) == 0
    page = opened(place.as_uri(), PHONE, offline=True)
    assert page.locator("canvas").count() == page.locator("figcaption").count() == len(names)
    assert (page.title(), page.locator("img").count()) == ("hostile-aaaaaa", 0)
    assert page.locator("[role=img]").count() >= len(names)
    assert page.evaluate(FITS)


def test_the_list_is_searched_sorted_and_opened_with_the_keyboard_and_fits_a_phone(root: Path, served, opened) -> None:
    page_run(root, "digits-aaaaaa", losses(60))
    page_run(root, "mnist-bbbbbb", losses(60, 0.5), failure="ValueError: bad", traceback=TRACE)
    (root / "runs" / "broken-cccccc").mkdir()
    page = opened(served(), PHONE, dark=True)
    assert page.evaluate(FITS)
    assert (page.locator("tbody tr").count(), page.locator("svg.spark polyline").count()) == (3, 2)
    for _ in range(5):  # the name of the page, the three sections, then the search
        page.keyboard.press("Tab")
    page.keyboard.type("digits")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=digits**")
    assert page.locator("tbody th a").all_inner_texts() == ["digits-aaaaaa"]
    page.get_by_label("search").fill("")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="failed 1").press("Enter")
    page.wait_for_url("**state=FAILED**")
    page.set_viewport_size(WIDE)
    page.get_by_role("link", name="took").press("Enter")
    page.wait_for_url("**sort=-took**")
    assert page.locator("th[aria-sort=descending]").count() == 1
    page.get_by_role("link", name="mnist-bbbbbb").press("Enter")
    page.wait_for_url("**/run/0/mnist-bbbbbb")
    assert page.get_by_role("heading", name="Root cause").is_visible()
    # The user's own frames, without frames of libraries.
    holds(page.locator(".cause pre").inner_text(), "losses.py", lacks=["trainer.py"])


@pytest.mark.full
def test_a_page_shows_changes_without_being_loaded_again(root: Path, served, opened: Callable[..., Any]) -> None:
    run = page_run(root, "digits-aaaaaa", losses(3))
    final = next(Path(run.events).glob("*.final.json"))
    record = final.read_text()
    final.write_text("no")
    page = opened(served("/run/0/digits-aaaaaa"))
    page.evaluate("window.kept = 'the same page'")
    page.get_by_text("The run is damaged.").wait_for()
    final.write_text(record)
    page.locator(".state.succeeded").wait_for()
    assert page.evaluate("window.kept") == "the same page"
    assert page.get_by_text("The run is damaged.").count() == 0
    # A run that has ended is not asked for again.
    assert page.locator("[hx-trigger*=every]").count() == 0
    page.locator("canvas").nth(2).wait_for()
    # One that disappears while it is open says so.
    final.write_text("no")
    page = opened(served("/run/0/digits-aaaaaa"))
    page.get_by_text("The run is damaged.").wait_for()
    shutil.rmtree(run.url)
    page.get_by_text("No such run").wait_for()


@pytest.mark.full
@pytest.mark.tensorflow
def test_a_run_trains_digits_while_its_page_is_open_and_a_preemption_appears(root: Path, command, opened) -> None:
    _, (url,) = command()
    about = {"args": ["--epochs", "60"], "retry_preemptions": 2, "checkpoint_every": "50steps"}
    run = sdk.submit(REPO / "jobs" / "digits" / "train.py", workers=2, name="digits", **about)
    page = opened(at(url, f"/run/0/{run.id}"))
    page.evaluate("window.kept = 'the same page'")
    page.locator("canvas").first.wait_for()
    label = "[...document.querySelectorAll('.uplot')].map(plot => plot.getAttribute('aria-label')).join()"
    first = page.evaluate(label)
    page.wait_for_function(f"before => {label} !== before", arg=first)
    # As a cloud does before it takes a machine away.
    started = next(event for event in read_events(run.plan.paths) if event.kind == "attempt_started")
    os.kill(int(started.data["pids"]["worker-0"]), signal.SIGTERM)
    page.get_by_text(re.compile("preempt", re.IGNORECASE)).first.wait_for(state="attached")
    page.get_by_text("attempt 2").first.wait_for(state="attached")
    # Its log grows while it is open, and shows its end.
    log = opened(at(url, f"/run/0/{run.id}/logs?task=chief-0"))
    log.evaluate("window.kept = 'the same page'")
    log.get_by_text("Epoch 60/60").wait_for(state="attached")
    log.get_by_text("The run has ended").wait_for()
    assert log.evaluate("window.kept") == "the same page"
    assert log.locator("pre.log").evaluate("log => log.scrollHeight - log.scrollTop - log.clientHeight") < 30
    page.locator(".state.succeeded").wait_for()
    assert page.evaluate("window.kept") == "the same page"
    assert run.wait().state is sdk.State.SUCCEEDED, run.why()
    # A section that was closed stays so, whatever has come before it.
    assert page.locator("details[open] summary").all_inner_texts() == ["chief-0, attempt 2"]


@pytest.mark.full
def test_runs_are_chosen_in_the_list_and_compared(root: Path, served, opened: Callable[..., Any]) -> None:
    for number in range(3):
        page_run(root, f"digits-{'abc'[number] * 6}", losses(120, number / 5), log="one line\n")
    page = opened(served())
    for name in ("digits-aaaaaa", "digits-cccccc"):
        page.get_by_label(f"compare {name}").check()
    # They stay chosen when the list is refreshed.
    page.wait_for_event("response", lambda answer: "part=rows" in answer.url)
    page.wait_for_event("response", lambda answer: "part=rows" in answer.url)
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare?**")
    assert page.locator("canvas").count() == 3
    before = page.locator(".uplot").first.screenshot()
    page.get_by_label("x axis").select_option("epoch")
    page.get_by_label("smoothing").fill("0.9")
    assert page.locator(".uplot").first.screenshot() != before
    assert page.get_by_text("The same in all of them.").is_visible()


@pytest.mark.full
def test_logs_of_100_mb_are_there_at_once_are_searched_and_followed(root: Path, command, opened) -> None:
    run = page_run(root, "digits-aaaaaa", losses(5))
    log, many = Path(run.log(1, "chief-0")), 1_150_000
    with log.open("w") as file:
        for number in range(many):
            word = "needle" if number == 70 else "and more of the line"
            file.write(f"\x1b[32mstep {number:9}\x1b[0m loss {1 / (number + 1):.8f} {word:50}\n")
    assert log.stat().st_size > 100e6
    process, (url,) = command()
    opened(at(url, "/"))  # imports of the first request are not counted
    page = opened(url)
    begun = time.monotonic()
    page.goto(at(url, "/run/0/digits-aaaaaa/logs?task=chief-0").partition("&token")[0], wait_until="commit")
    page.get_by_text(f"step {many - 1:9}").wait_for()
    assert time.monotonic() - begun < 0.3 * slow()
    assert longest_task(page) < 100 * slow()
    assert page.locator("pre.log .a32").count() == 500
    page.get_by_role("link", name="Earlier lines").click()
    page.get_by_text(f"step {many - 501:9}").wait_for()
    assert page.get_by_text(f"step {many - 1:9}").count() == 0
    page.get_by_label("search").fill("NEEDLE")
    page.keyboard.press("Enter")
    page.get_by_text("needle").first.wait_for()
    assert page.locator("pre.log .a32").all_inner_texts() == [f"step {70:9}"]
    # What it has in memory, and the most that it has had.
    sizes = re.findall(r"Vm(?:RSS|HWM):\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert max(map(int, sizes)) * 1024 < 100e6


def slow() -> float:
    """Return how much slower than usual this machine may be while other tests run on it."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) * 2)


def longest_task(page: Any) -> float:
    """Return the milliseconds of the longest task that the page's scripts and layout have taken."""
    return page.evaluate(
        """new Promise(done => {
          const found = [0], add = list => list.getEntries().forEach(entry => found.push(entry.duration));
          new PerformanceObserver(add).observe({type: 'longtask', buffered: true});
          setTimeout(() => done(Math.max(...found)), 300);
        })"""
    )


@pytest.mark.full
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_page_has_a_serious_problem_for_a_reader_or_scrolls(root, tmp_path, served, opened, picture, dark) -> None:
    from axe_playwright_python.sync_playwright import Axe

    gallery(root, time.time(), TRACE)
    report, swept = tmp_path / "report.html", tmp_path / "sweep.html"
    assert app.run(["export", "html", "digits-k3f7aa", "mnist-w5r3fg", "-o", str(report)]) == 0
    assert app.run(["export", "html", "digits-search", "-o", str(swept)]) == 0
    (root / "runs" / "broken-dddddd").mkdir()
    places = {"list": served(), "report": report.as_uri(), "swept": swept.as_uri()}
    runs = {"run": "digits-k3f7aa", "failed": "mnist-w5r3fg", "damaged": "broken-dddddd", "missing": "nothing-aaaaaa"}
    places |= {name: served(f"/run/0/{run}") for name, run in {**runs, "logs": "digits-k3f7aa/logs"}.items()}
    for kind, name in {"schedule": "nightly", "model": "digits", "sweep": "digits-search"}.items():
        places |= {f"{kind}s": served(f"/{kind}s"), kind: served(f"/{kind}/0/{name}")}
    places["compare"] = served("/compare?run=0/digits-k3f7aa&run=0/digits-p7x2bc&run=0/digits-q4m6de")
    problems = list[str]()
    for name, url in places.items():
        page = opened(url, dark=dark, missing=name == "missing")
        page.locator("h1").first.wait_for()
        for size, form in ((WIDE, ""), (PHONE, "-phone")):
            page.set_viewport_size(size)
            # Curves are drawn anew for another width.
            page.wait_for_function(FITS, timeout=20_000)
            if name not in ("damaged", "missing", "swept"):
                picture(page, f"{name}{form}{'-dark' if dark else ''}")
            page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
            page.wait_for_function(FITS, timeout=20_000)
            # Tables have another layout on a phone.
            found = Axe().run(page).response["violations"] if size is WIDE or name in ON_A_PHONE else []
            serious = [each for each in found if each["impact"] in ("serious", "critical")]
            problems += [f"{name} {size}: {each['id']}: {each['nodes'][0]['html'][:200]}" for each in serious]
            page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = false; })")
    assert problems == []


@pytest.mark.full
def test_a_schedule_is_paused_and_fired_and_a_version_promoted_with_the_keyboard(root, write, command, opened) -> None:
    gallery(root, time.time(), TRACE)
    sdk.schedule(write("train.py", "print('trained')\n"), name="yearly", cron="0 3 1 1 *", root=root)
    _, (_, acting) = command("--allow-actions")
    page = opened(at(acting, "/schedule/0/yearly"))
    page.get_by_role("button", name="Run now").press("Enter")
    page.locator(".slots .id").press("Enter")
    page.locator(".state.succeeded").wait_for()
    assert page.get_by_role("link", name="yearly", exact=True).get_attribute("href") == "/schedule/0/yearly"
    page.get_by_role("link", name="Schedules").press("Enter")
    page.get_by_role("link", name="nightly").press("Enter")
    page.get_by_role("button", name="Pause the schedule").press("Enter")
    page.locator(".state.paused").wait_for()
    assert sdk.Schedule("nightly", root=root).record.paused == "by hand"
    page.get_by_role("link", name="Models").press("Enter")
    page.get_by_role("link", name="digits", exact=True).press("Enter")
    page.get_by_text("Promote a version").press("Enter")
    page.keyboard.press("Tab")  # the version that awaits an approval, then the note
    page.keyboard.press("Tab")
    page.keyboard.type("seen by a person")
    page.keyboard.press("Enter")
    page.locator("#version-9 .state.champion").wait_for()
    move = sdk.models(root)["digits"].history()[-1]
    assert (move.champion, move.before, move.note) == (9, 7, "seen by a person")
    page.locator("#version-9").get_by_role("link", name="nightly-").press("Enter")
    page.get_by_role("link", name="nightly", exact=True).press("Enter")
    page.wait_for_url("**/schedule/0/nightly")


@pytest.mark.full
def test_a_sweep_is_read_with_the_keyboard_and_its_charts_fit_and_are_whole_on_paper(root, served, opened) -> None:
    gallery(root, time.time(), TRACE)
    page = opened(served("/"), PHONE)
    page.get_by_role("link", name="Sweeps").press("Enter")
    page.get_by_role("link", name="mnist", exact=True).press("Enter")
    page.wait_for_url("**/sweep/0/mnist")
    # On a phone the chart with many parameters scrolls in its own region, which the keyboard reaches.
    region = page.get_by_role("region", name="Parallel coordinates", exact=True).last
    region.focus()
    page.keyboard.press("End")
    assert region.evaluate("each => each.scrollWidth > each.clientWidth")
    assert page.evaluate(FITS)
    # Lines, dots and axes have a size, and dashes are drawn: styles apply without a style attribute.
    dashed = page.locator("svg polyline.stopped-early").first
    assert dashed.evaluate("each => getComputedStyle(each).strokeDasharray") != "none"
    widths = "all => all.map(each => each.getBoundingClientRect().width)"
    boxes = page.locator(".parallel polyline").evaluate_all(widths)
    assert len(boxes) == 7 and min(boxes) > 300
    page.get_by_role("link", name="mnist-000-").press("Enter")
    page.get_by_role("link", name="mnist", exact=True).press("Enter")
    page.wait_for_url("**/sweep/0/mnist")
    page.emulate_media(media="print")
    assert page.locator(".parallel").is_visible() and not page.locator(".top").is_visible()


@pytest.mark.full
def test_a_page_has_the_zone_of_its_reader_an_icon_and_is_whole_on_paper(root, tmp_path, served, opened) -> None:
    gallery(root, time.time(), TRACE)
    url = served("/run/0/mnist-w5r3fg")
    here, there = opened(url, zone="Europe/Berlin"), opened(url, zone="America/New_York")
    times = [page.locator(".sentence time").first.inner_text() for page in (here, there)]
    assert [time[11:13] for time in times] == ["17", "11"]
    assert "America/New_York" in there.locator(".zone").inner_text()
    good = opened(served("/run/0/digits-k3f7aa"))
    icons = [page.locator("#icon").get_attribute("href") for page in (here, good)]
    assert ["cf222e" in icons[0], "1a7f37" in icons[1]] == [True, True]
    # The last value of an epoch that was cut is a ring: it has another picture than a whole one.
    cut = opened(served("/run/0/digits-q4m6de"))
    assert cut.get_by_text("of an unfinished epoch").count() == 4
    assert cut.evaluate("JSON.parse(document.getElementById('data').textContent)[0].series[0].partial") == [13]
    before = cut.locator(".uplot").first.screenshot()
    cut.get_by_label("log scale").check()
    assert cut.locator(".uplot").first.screenshot() != before
    # The numbers at the axes are whole, and no third of a row is empty.
    boxes = cut.locator("figure").evaluate_all("all => all.map(each => each.getBoundingClientRect().right)")
    assert len({round(right) for right in boxes}) == 2
    report = tmp_path / "report.html"
    assert app.run(["export", "html", "digits-k3f7aa", "mnist-w5r3fg", "-o", str(report)]) == 0
    paper = opened(report.as_uri())
    paper.evaluate("dispatchEvent(new Event('beforeprint'))")
    paper.emulate_media(media="print")
    assert paper.locator("details:not([open])").count() == 0 and not paper.locator("#controls").is_visible()
    clipped = "all => all.filter(each => each.scrollHeight > each.clientHeight + 1).length"
    assert paper.locator("pre").evaluate_all(clipped) == 0
    width = paper.locator("canvas").first.evaluate("canvas => canvas.getBoundingClientRect().width")
    assert width <= paper.locator("figure").first.evaluate("figure => figure.clientWidth")


@pytest.mark.full
def test_a_user_cancels_and_resumes_a_run_on_its_page(root: Path, write, command, opened: Callable[..., Any]) -> None:
    program = write("train.py", "import time\nprint('training', flush=True)\ntime.sleep(600)\n")
    _, (reading, acting) = command("--allow-actions")
    run = sdk.submit(program, name="long", limit_grace="1s")
    assert opened(at(reading, f"/run/0/{run.id}")).get_by_role("heading", name="Actions").count() == 0
    page = opened(at(acting, f"/run/0/{run.id}"))
    page.locator(".state.running").wait_for()
    page.get_by_text("Cancel", exact=True).click()
    page.get_by_role("button", name="Cancel the run").click()
    page.locator(".state.cancelled").wait_for()
    page.get_by_text("Resume", exact=True).click()
    page.get_by_role("button", name="Resume the run").click()
    page.locator(".state.running").wait_for()
    run.cancel()
    assert run.wait().state is sdk.State.CANCELLED


@pytest.fixture
def picture(request: pytest.FixtureRequest, root: Path) -> Callable[..., None]:
    """Write a picture of the documentation, with --pictures: `picture(page, "list")`."""

    def write_picture(page: Any, name: str) -> None:
        if not request.config.getoption("--pictures"):
            return
        from io import BytesIO

        from PIL import Image

        # A reader's runs are in no folder of a test.
        page.evaluate(
            """root => {
              const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
              while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(root, "/home/ada/runs");
            }""",
            str(root),
        )
        # Curves for another width are drawn within the next frames.
        frame = "requestAnimationFrame"
        page.evaluate(f"new Promise(done => {frame}(() => {frame}(() => {frame}(done))))")
        size = page.viewport_size
        height = min(page.evaluate("document.documentElement.scrollHeight"), max(size["height"], 1100))
        whole = {"x": 0, "y": 0, "width": size["width"], "height": height}
        found = Image.open(BytesIO(page.screenshot(full_page=True, clip=whole))).convert("RGB")
        folder = REPO / "docs" / "images"
        folder.mkdir(exist_ok=True)
        found.quantize(128, method=Image.Quantize.MAXCOVERAGE).save(folder / f"{name}.png", optimize=True)

    return write_picture
