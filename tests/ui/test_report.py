"""`podlift export html`: runs in one file that needs no other."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from page_runs import HOSTILE, Elements, page_run, page_sweep
from support import REPO, command, holds

from sdk.checkpoint.catalog import CheckpointInfo
from sdk.cli import app, sweep_view
from sdk.errors import StoreError
from sdk.packaging.project import parse_toml
from sdk.planning import references
from sdk.planning.diff import Change
from sdk.records.timeline import Moment
from sdk.status import Failure
from sdk.sweeps.records import Book
from sdk.ui import model, pages
from sdk.ui.curves import Point
from sdk.ui.model import Bar, Lane, RunView, Tail, TaskView


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., str]:
    def write(*words: str) -> str:
        place = tmp_path / "report.html"
        assert app.run(["export", "html", *words, "-o", str(place)]) == 0
        return place.read_text()

    return write


def steps(count: int, *names: str) -> list[dict[str, object]]:
    return [{"step": step, "metrics": dict.fromkeys(names or ("loss",), 1 / step)} for step in range(1, count + 1)]


def test_a_failed_runs_report_begins_with_the_root_cause_and_holds_all_known_facts(root: Path, report) -> None:
    trace = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    raise ValueError("bad")'
    page_run(root, "digits-aaaaaa", steps(3), failure="ValueError: bad", traceback=trace, log="first\nlast line\n")
    text = report("digits-aaaaaa")
    cause = ["state failed", "Root cause", "train.py&#34;, line 7", "podlift logs digits-aaaaaa"]
    at = [text.index(part, text.index("<main>")) for part in (*cause, "Curves", "Timeline", "Tasks")]
    assert at == sorted(at)
    holds(text, "worker-0", "Last log lines", "last line")
    holds(text, "Plan and environment", "Files of the bundle", "The whole explan")
    chart = json.loads(Elements(text).data)[0]
    assert (chart["name"], chart["series"][0]["value"]) == ("loss", [1, 0.5, 0.333333])


def test_a_report_loads_no_other_file_or_host_and_its_policy_allows_only_its_scripts(root: Path, report) -> None:
    page_run(root, "digits-aaaaaa", steps(3))
    text = report("digits-aaaaaa")
    for tag, names in Elements(text).found:
        assert tag not in ("link", "img", "iframe", "base", "object")
        assert not {"src", "style"} & {*names} and not any(name.startswith("on") for name in names)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None and policy[1].startswith("default-src &#39;none&#39;")
    assert (policy[1].count("unsafe"), policy[1].count("sha256-")) == (0, 4)


def view(text: str) -> RunView:
    """A run that holds one text wherever a text can be."""
    saved = CheckpointInfo(key=text, step=1, epoch=0, serial=1, pinned=(text,), quarantined=text, metrics={text: 1.0})
    bars = [Bar(begin=0, length=length, title=text, kind=text) for length in (1, 0)]
    return RunView(
        **dict.fromkeys(("id", "url", "ref", "state", "reason", "why"), text),
        **{name: [text] for name in ("sentence", "commands", "problems")},
        **{name: [(text, text)] for name in ("facts", "arguments", "remarks", "plan", "files")},
        failure=Failure(task=text, message=text, traceback=f"T: {text}"),
        partial=frozenset([text]),
        metrics={text: 1.0},
        curves={text: [Point(1.0, 0.0, 0.0, 1.0, 1)]},
        moments=[Moment(time=1.0, source=text, text=text, causes=(text,))],
        lanes=[Lane(name=text, bars=bars, note=text)],
        tasks=[TaskView(name=text, state=text)],
        tails=[Tail(task=text, attempt=1, text=text)],
        checkpoints=[saved],
    )


@pytest.mark.parametrize("at", range(len(HOSTILE)), ids=lambda at: f"hostile-{at}")
def test_the_content_of_a_hostile_run_is_text_wherever_it_is_shown(at: int) -> None:
    def made(text: str) -> Counter[tuple[str, tuple[str, ...]]]:
        views = [view(text or "-"), view(f"{text}2")]
        change = Change(section="job", path=text, before=text, after=f"{text}3", kind="changed")
        code = Change(section="code", path=text, before=text, after=text, kind="changed")
        page = pages.report(views, model.compared(views, {views[1].id: [change, code]}), 0.0)
        assert not set(page) & {"\x1b", "\u202e", "\u2066", "\x00", "\x9b", "\ud800"}
        return Elements(page).found

    assert made(HOSTILE[at]) == made("plain")


def test_the_metrics_and_logs_of_a_hostile_run_arrive_as_they_are(root: Path, report) -> None:
    names, log = [name for name in HOSTILE if name], "".join(f"{text}\n" for text in HOSTILE)
    page_run(root, "hostile-bbbbbb", steps(2, *names), failure=log, traceback=log, log=log)
    text = report("hostile-bbbbbb")
    assert [chart["name"] for chart in json.loads(Elements(text).data)] == sorted(names)
    assert "&lt;img src=x onerror=alert(1)&gt;\n" in text


def test_a_report_of_a_hundred_thousand_points_has_at_most_500_kb_and_keeps_the_peak(root: Path, report) -> None:
    records = steps(10_000, *"abcdefghij")
    records[7_776]["metrics"]["b"] = 12345.5
    page_run(root, "long-aaaaaa", records)
    text = report("long-aaaaaa")
    assert len(text.encode()) <= 500_000
    assert max(json.loads(Elements(text).data)[1]["series"][0]["value"]) == 12345.5


def test_several_runs_are_overlaid_and_compared_and_a_damaged_one_has_its_reason(root: Path, report) -> None:
    page_run(root, "first-aaaaaa", steps(4))
    page_run(root, "second-bbbbbb", steps(2, "loss", "acc"))
    (root / "runs" / "broken-cccccc").mkdir()
    text = report("first-aaaaaa", "second-bbbbbb", "broken-cccccc", "first-aaaaaa")
    charts = {chart["name"]: [each["run"] for each in chart["series"]] for chart in json.loads(Elements(text).data)}
    assert charts == {"acc": ["second-bbbbbb"], "loss": ["first-aaaaaa", "second-bbbbbb"]}
    holds(text, "The same in all of them.", "is not a run of podlift")
    assert text.count("<article") == 3


def test_a_part_that_is_damaged_leaves_the_others_and_colours_of_a_log_are_classes(root: Path, report) -> None:
    run = page_run(root, "digits-aaaaaa", log="\x1b[1;31mred <b>\x1b[0m plain \x1b[32mgreen\n")
    coloured = '<span class="a1 a31">red &lt;b&gt;</span> plain <span class="a32">green</span>'
    Path(run.metrics(1, "chief-0")).write_text("not json\n")
    holds(report("digits-aaaaaa"), "Not shown: the metrics.", coloured)


def test_a_summary_in_markdown_goes_to_stdout_and_nothing_in_it_is_obeyed(root: Path, capsys) -> None:
    hostile = "<b> | `x` [y](z) @all"
    page_run(root, "digits-aaaaaa", steps(2, hostile), failure=f"E: {hostile}", traceback="T: ```\n# heading")
    assert app.run(["export", "md", "digits-aaaaaa"]) == 0
    text = capsys.readouterr().out
    holds(text, "## digits-aaaaaa: FAILED", r"| \<b\> \| \`x\` \[y\](z) @<!-- -->all | 0.5 |", "````text\nT: ```")


def test_mistakes_are_told_at_once_and_no_other_file_is_overwritten(root: Path, tmp_path: Path, capsys) -> None:
    page_run(root, "digits-aaaaaa")
    shown = command(capsys, "export", "html", "nowhere-aaaaaa", "nothing-bbbbbb", "-o", str(tmp_path / "r.html"))
    assert shown.code == 2
    holds(shown.stderr, "nowhere-aaaaaa", "nothing-bbbbbb")
    other = tmp_path / "thesis.html"
    other.write_text("mine")
    for words, said in (
        (("pdf",), "Received: 'pdf'"),
        (("html", "--into", "x"), "--into is for a tracker"),
        (("mlflow", "-o", "x"), "--output is for html"),
        (("html", "-o", str(other)), "exists and is not a report"),
    ):
        shown = command(capsys, "export", *words, "digits-aaaaaa")
        assert (shown.code, said in shown.stderr) == (2, True), words
    assert other.read_text() == "mine"
    place = tmp_path / "r.html"
    assert [app.run(["export", "html", "digits-aaaaaa", "-o", str(place)]) for _ in range(2)] == [0, 0]


def test_a_sweep_is_written_by_its_name_with_its_charts_and_trials(root: Path, report, capsys) -> None:
    trials = page_sweep(root, "search", 6)
    text = report("search")
    holds(text, "Best val_accuracy so far", "val_accuracy of each trial", "Parameters and val_accuracy", trials[5].run)
    holds(text, lacks=['href="/', " src="])
    assert app.run(["export", "md", "search"]) == 2
    assert "A sweep is written as html, by itself. Received: md search." in capsys.readouterr().err
    assert app.run(["export", "html", "search", trials[0].run]) == 2


def test_of_more_trials_than_a_page_has_the_best_one_is_there(root: Path, report, monkeypatch) -> None:
    from sdk.sweeps.study import PRUNED, Study

    # The one that was stopped early has a better value than the ones that trained to their end.
    page_sweep(root, "lucky", 3, end="")
    book = Book(str(root))
    study = Study(book.store, book.read("lucky"))
    study.report(study.trials()[2], {4: 2.0})
    study.tell(study.trials()[2], PRUNED)
    monkeypatch.setattr(sweep_view, "TRIALS", 1)
    text = report("lucky")
    assert 'id="trial-0"' in text and 'id="trial-2"' not in text


def test_a_bucket_that_does_not_answer_holds_no_report_of_a_run_here(root: Path, report, monkeypatch) -> None:
    monkeypatch.setenv("PODLIFT_VERTEX_BUCKET", "gs://silent")
    monkeypatch.setattr(references, "_runs", lambda *args, **about: [])
    page_run(root, "seen-aaaaaa", [{"step": 1, "metrics": {"loss": 1.0}}])
    page_sweep(root, "latest", 1)
    asked, find = list[str](), Book.find

    def looked(self, name: str):
        asked.append(self.root)
        if self.root != str(root):
            raise StoreError("the bucket does not answer")
        return find(self, name)

    monkeypatch.setattr(Book, "find", looked)
    for ref in ("seen-aaaaaa", "latest"):
        assert "seen-aaaaaa" in report(ref)
    assert asked == [str(root)]
    assert "seen-aaaaaa" in report("seen"), "nor of one with a short name"


def test_the_wheel_has_templates_licensed_scripts_and_at_most_120_kb_of_javascript() -> None:
    home = REPO / "sdk" / "ui"
    patterns = parse_toml((REPO / "pyproject.toml").read_bytes(), "")["tool"]["setuptools"]["package-data"]["*"]
    files = [path.relative_to(home) for folder in ("templates", "assets") for path in (home / folder).iterdir()]
    assert not [path for path in files if not any(path.match(pattern) for pattern in patterns)]
    scripts = [path for path in (home / "assets").glob("*.js")]
    assert 50_000 < sum(path.stat().st_size for path in scripts) <= 120_000
    for path in (home / "assets").glob("*.min.js"):
        assert "ermission" in (home / "assets" / f"{path.name.partition('.')[0]}.LICENSE.txt").read_text()
