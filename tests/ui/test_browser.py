"""Pages in a browser: Chromium, without a window, prints what a page has become once its scripts ran."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from page_runs import HOSTILE, page_run
from support import LIMIT_S, needs, until

import sdk
from sdk import api
from sdk.cli import app
from sdk.clock import SystemClock

needs("starlette", "uvicorn")

from sdk.ui import server  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed: pages are not opened in a browser"),
]
# A script of a run that ran would leave its mark.
OWNED = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def opened(url: str, folder: Path, seconds: int = 5) -> str:
    """Return the elements of a page after so many seconds of its own clock."""
    # As root, Chromium has no sandbox of its own; it opens podlift's pages only.
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--virtual-time-budget={seconds * 1000}", "--window-size=390,900", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout


def test_a_report_draws_its_curves_offline_and_runs_nothing_of_the_run(root: Path, tmp_path: Path) -> None:
    # Chromium cannot print what UTF-8 lacks.
    names = [name for name in HOSTILE if name and name != "\ud800"] + [OWNED]
    records = [{"step": step, "metrics": dict.fromkeys(names, 1 / step)} for step in (1, 2, 3)]
    page_run(root, "hostile-aaaaaa", records, failure=OWNED, traceback=OWNED, log="\n".join([*names, ""]))
    place = tmp_path / "report.html"
    assert app.run(["report", "hostile-aaaaaa", "-o", str(place)]) == 0
    page = opened(place.as_uri(), tmp_path)
    assert page.count("<canvas") == page.count("<figcaption") == len(names)
    assert "<title>hostile-aaaaaa</title>" in page
    assert "<img" not in page
    assert page.count('role="img"') >= len(names)


@pytest.mark.full
def test_a_page_shows_what_changes_without_being_loaded_again(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_FRESH_S", 0.0)
    run = page_run(root, "digits-aaaaaa", [{"step": step, "metrics": {"loss": 1 / step}} for step in (1, 2, 3)])
    final = next(Path(run.events).glob("*.final.json"))
    record, urls, asked = final.read_text(), list[str](), list[str]()
    final.write_text("no")

    class Mending:
        def runs(self, root: str) -> tuple[list[sdk.RunInfo], list[str]]:
            return api.list_runs(root, None, None, (), None)

        def attach(self, url: str) -> sdk.Run:
            asked.append(url)
            if len(asked) == 3:
                final.write_text(record)
            return api.attach(url)

    values = {"port": 0, "token": "the-token", "announce": urls.append}
    threading.Thread(
        target=server.serve, args=([str(root)], Mending(), SystemClock()), kwargs=values, daemon=True
    ).start()
    until(lambda: urls)
    page = opened(urls[0].replace("/?", "/run/0/digits-aaaaaa?"), tmp_path, seconds=60)
    assert len(asked) >= 3
    assert re.search(r'class="state succeeded">SUCCEEDED', page)
    assert "The run is damaged" not in page
    # What has ended is not asked for again.
    assert 'hx-trigger="every' not in page
    assert page.count("<canvas") == 1
