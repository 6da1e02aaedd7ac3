"""Weekly retraining, from the slot to the champion: promoted, refused, approved, rolled back."""

from __future__ import annotations

import itertools
import json
import textwrap
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from support import FakeClock, needs, until

import sdk
from sdk.cli import app
from sdk.clock import SystemClock
from sdk.schedules.records import Book, SlotRecord
from sdk.schedules.runs import LocalRuns
from sdk.schedules.server import Server

pytestmark = [pytest.mark.process]

needs("cronsim", "google.cloud.scheduler_v1")
# A nearest-mean classifier of points on a line, in Python alone: the more rows, the better the means.
MEANS = {
    "train.py": """
        import json, sdk
        from pathlib import Path
        ctx = sdk.context()
        rows = [row for part in sorted(Path(ctx.inputs["rows"]).iterdir()) for row in json.loads(part.read_bytes())]
        means = [sum(x for x, y in rows if y == label) / sum(y == label for _, y in rows) for label in (0, 1)]
        Path(ctx.dirs.model, "means.json").write_text(json.dumps(means))
    """,
    "quality.py": """
        import json
        from pathlib import Path
        def measure(model, data):
            low, high = json.loads(Path(model, "means.json").read_text())
            rows = [row for part in Path(data).iterdir() for row in json.loads(part.read_bytes())]
            right = [(abs(x - high) < abs(x - low)) == bool(y) for x, y in rows]
            return {"accuracy": sum(right) / len(right)}
    """,
}
LIMITS = {"min_gain": "0.01", "ask_below": "0.08", "guards": ["accuracy >= 0.5"]}
GATE = {"evaluate": "quality:measure", "data": "test", "metric": "accuracy", **LIMITS}


class Retraining:
    """A weekly schedule with a gate that decides, and the rows that it trains on."""

    def __init__(self, project: Path, added: list[bytes], test: bytes) -> None:
        self.project, self.added = project, added
        for name, text in MEANS.items():
            (project / name).write_text(textwrap.dedent(text))
        self.put("test", "test", test)
        self.put("rows", "week-1", added[0])
        inputs = {name: self.place(name) for name in ("rows", "test")}
        retry = sdk.Retry(infrastructure=3, preemptions=None)
        job = sdk.Job("train.py", model="digits", inputs=inputs, gate=GATE, retry=retry)
        notify = (f"command:sh -c 'cat >> {project}/notices.jsonl; echo >> {project}/notices.jsonl'",)
        rules: Any = {"name": "weekly", "cron": "0 3 * * 1", "time_zone": "Europe/Berlin", "notify": notify}
        self.schedule = sdk.schedule(job, **rules)

    def place(self, folder: str) -> str:
        return str(self.project.parent / folder)

    def put(self, folder: str, name: str, data: bytes) -> None:
        place = Path(self.place(folder))
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(data)

    def pass_week(self) -> SlotRecord:
        """Serve the next slot by a clock that is there at once, and return its record."""
        record, before = self.schedule.record, len(self.schedule.history(None))
        slots = record.spec.slots.after(datetime.fromtimestamp(record.since, timezone.utc))
        clock = FakeClock(next(itertools.islice(slots, before, None)).timestamp() + 1)
        server = Server(self.schedule.root, clock, LocalRuns(SystemClock()))
        book = Book(self.schedule.root)

        def ended() -> bool:
            server.tick()
            keys = [*book.keys(record)]
            return len(keys) > before and not book.slot(record, keys[-1]).is_open

        until(ended, lambda: self.schedule.history(None))
        server.settle()
        return self.schedule.history(1)[0]

    def notices(self) -> list[dict[str, Any]]:
        text = (self.project / "notices.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines() if line]


def contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


def points(*rows: tuple[float, int]) -> bytes:
    return json.dumps(rows).encode()


@pytest.fixture
def weeks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Retraining:
    """A schedule, and the rows that each of its weeks adds; the third week's labels are corrupted."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    corrupted = points((1.8, 0), (1.8, 0), (0.2, 1), (0.2, 1))
    added = [points((0.9, 0), (1.6, 1)), points((0.3, 0), (1.4, 1)), corrupted, points((0.4, 0), (1.3, 1))]
    return Retraining(project, added, test=points(*((each / 10, int(each >= 10)) for each in range(20))))


@pytest.mark.shows("A gate compares each new model")
def test_weeks_are_promoted_refused_or_approved_and_a_rollback_restores_week_one(
    weeks: Retraining, tmp_path: Path, capsys, monkeypatch
) -> None:
    def said_by(*words: str) -> str:
        capsys.readouterr()
        assert app.run([*words]) == 0
        return capsys.readouterr().out

    this = weeks
    found, champions = list[SlotRecord](), list[int]()
    for week, rows in enumerate(this.added, 1):
        if week > 1:
            this.put("rows", f"week-{week}", rows)
        found.append(this.pass_week())
        champions.append(sdk.models(this.schedule.root)["digits"].champion().number)
        if week == 3:
            Path(this.place("rows"), "week-3").unlink()
    assert [each.state for each in found] == ["SUCCEEDED"] * 4, found
    assert champions == [1, 2, 2, 2]
    outcomes = [each.registered.outcome if each.registered else "" for each in found]
    assert outcomes == ["promoted", "promoted", "kept", "asks"], [each.registered for each in found]
    model = sdk.models(this.schedule.root)["digits"]
    assert [each.record.run for each in model.versions()] == [each.run for each in found]
    states = [model.state(each) for each in model.versions()]
    assert states == ["was champion", "champion", "registered", "awaits approval"]
    assert [each["event"] for each in this.notices()] == ["promoted", "promoted", "asks"]
    assert "podlift models promote digits 4 --as-compared" in this.notices()[-1]["text"]
    first = {each.path: each.parts for each in model.version(1).files()}
    kept = Path(model.version(1).download(tmp_path / "week-1"))

    monkeypatch.setenv("PODLIFT_ROOT", this.schedule.root)
    shown = said_by("models", "status", "digits", "4")
    assert "awaits approval" in shown and "compared   with version 2, then the champion, by quality:measure" in shown
    assert "guard      holds: accuracy >= 0.5 (it is " in shown
    assert "next       podlift models promote digits 4 --as-compared" in shown
    assert said_by("models", "promote", "digits", "4", "--as-compared") == "4\n"
    assert model.champion().number == 4
    assert [said_by("models", "promote", "digits", "--previous") for _ in range(2)] == ["2\n", "1\n"]
    assert {each.path: each.parts for each in model.champion().files()} == first
    again = Path(model.champion().download(tmp_path / "again"))
    assert contents(again) == contents(kept)
    assert [(move.before, move.champion, move.cause) for move in model.history()] == [
        (0, 1, "promote"), (1, 2, "promote"), (2, 4, "promote"), (4, 2, "rollback"), (2, 1, "rollback"),
    ]  # fmt: skip
    shown = said_by("schedule", "status", "weekly")
    assert "version 2 of 'digits' was promoted" in shown and "version 3 of 'digits' was not promoted" in shown
