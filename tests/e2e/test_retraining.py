"""Weekly retraining on the emulated cloud, from the slot to the champion: promoted, refused, approved, rolled back."""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import needs, until

import sdk
from sdk.cli import app
from sdk.schedules.records import SlotRecord
from sdk.storage.registry import open_store
from sdk.testing.vertex import Cloud

needs("cronsim", "google.cloud.scheduler_v1")
WEEK_S = 7 * 86400.0
# A nearest-mean classifier of points on a line, in Python alone: the more rows, the better the means.
MEANS = {
    "train.py": """
        import json, os, sdk
        from sdk.storage.registry import open_store
        ctx = sdk.context()
        store = open_store(ctx.inputs["rows"].rstrip("/"))
        rows = [row for stat in store.list("") for row in json.loads(bytes(store.get(stat.key)))]
        means = [sum(x for x, y in rows if y == label) / max(1, sum(y == label for _, y in rows)) for label in (0, 1)]
        open_store(os.environ["AIP_MODEL_DIR"].rstrip("/")).put_new("means.json", [json.dumps(means).encode()])
        ctx.report({"rows": len(rows)}, step=1)
    """,
    "quality.py": """
        import json
        from pathlib import Path
        from sdk.storage.registry import open_store
        def measure(model, data):
            low, high = json.loads(Path(model, "means.json").read_text())
            store = open_store(data.rstrip("/"))
            rows = [row for stat in store.list("") for row in json.loads(bytes(store.get(stat.key)))]
            right = [(abs(x - high) < abs(x - low)) == bool(y) for x, y in rows]
            return {"accuracy": sum(right) / len(right)}
    """,
}
# scikit-learn's 8x8 images and a dense network of Keras.
DIGITS = {
    "train.py": """
        import io, os, sdk, keras, numpy as np
        from sdk.storage.registry import open_store
        ctx = sdk.context()
        store = open_store(ctx.inputs["rows"].rstrip("/"))
        parts = [np.load(io.BytesIO(bytes(store.get(stat.key)))) for stat in store.list("")]
        x, y = (np.concatenate([part[name] for part in parts]) for name in ("x", "y"))
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        model.fit(x, y, epochs=25, batch_size=32, verbose=2)
        model.save("digits.keras")
        data = open("digits.keras", "rb").read()
        open_store(os.environ["AIP_MODEL_DIR"].rstrip("/")).put_new("digits.keras", [data])
    """,
    "quality.py": """
        import io, keras, numpy as np
        from sdk.storage.registry import open_store
        def measure(folder, data):
            model = keras.saving.load_model(f"{folder}/digits.keras")
            store = open_store(data.rstrip("/"))
            (stat,) = store.list("")
            part = np.load(io.BytesIO(bytes(store.get(stat.key))))
            right = model.predict(part["x"], verbose=0).argmax(axis=1) == part["y"]
            return {"accuracy": float(right.mean()), "accuracy[eights]": float(right[part["y"] == 8].mean())}
    """,
}


class Retraining:
    """A weekly schedule whose gate decides, and the rows that it trains on."""

    def __init__(self, cloud: Cloud, project: Path, files: dict[str, str], **gate: Any) -> None:
        self.cloud, self.project = cloud, project
        for name, text in files.items():
            (project / name).write_text(textwrap.dedent(text))
        self.rows, self.test = (f"gs://{cloud.bucket}/{name}/" for name in ("rows", "test"))
        job = sdk.Job(
            "train.py",
            inputs={"rows": self.rows, "test": self.test},
            gate={"evaluate": "quality:measure", "data": "test", "metric": "accuracy", **gate},
            retry=sdk.Retry(infrastructure=3, preemptions=None),
        )
        target = cloud.backend(keeper_service_account="keeper@podlift.iam.gserviceaccount.com")
        notify = (f"command:tee -a {project}/notices.jsonl",)
        self.schedule = sdk.schedule(
            job,
            name="weekly",
            cron="0 3 * * 1",
            time_zone="Europe/Berlin",
            backend=target,
            model="digits",
            notify=notify,
        )

    def put(self, folder: str, name: str, data: bytes) -> None:
        open_store(folder.rstrip("/")).put_new(name, [data])

    def pass_week(self) -> SlotRecord:
        """Let a week pass, and return the record of its slot once its keeper has ended."""
        before = len(self.schedule.history(None))
        assert self.cloud.advance(WEEK_S)

        def ended() -> bool:
            found = self.schedule.history(None)
            jobs = self.cloud.ask("GET", f"/v1/{self.cloud.parent}/customJobs").get("customJobs", [])
            going = [
                job for job in jobs if job["state"] in ("JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_QUEUED")
            ]
            return len(found) > before and not found[0].is_open and not going

        until(ended, lambda: self.schedule.history(None))
        return self.schedule.history(1)[0]

    def notices(self) -> list[str]:
        path = self.project / "notices.jsonl"
        return path.read_text().splitlines() if path.exists() else []


def points(*rows: tuple[float, int]) -> bytes:
    return json.dumps(rows).encode()


def images(first: int, last: int, *, corrupted: bool = False) -> bytes:
    """Return these of scikit-learn's digits in a fixed random order, with wrong labels if they are corrupted."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))[first:last]
    labels = digits.target[order]
    file = io.BytesIO()
    np.savez(file, x=(digits.data[order] / 16).astype("float32"), y=(labels * 7 + 3) % 10 if corrupted else labels)
    return file.getvalue()


@pytest.fixture(params=["means", pytest.param("digits", marks=[pytest.mark.full, pytest.mark.tensorflow])])
def weeks(
    request: pytest.FixtureRequest, podlift_vertex: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Retraining, list[bytes]]]:
    """A schedule, and the rows that each of its weeks adds; the third week's labels are corrupted."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    if request.param == "means":
        this = Retraining(podlift_vertex, project, MEANS, min_gain="0.01", ask_below="0.08", guards=["accuracy >= 0.5"])
        this.put(this.test, "points", points(*((each / 10, int(each >= 10)) for each in range(20))))
        yield (
            this,
            [
                points((0.9, 0), (1.6, 1)),
                points((0.3, 0), (1.4, 1)),
                points((1.8, 0), (1.8, 0), (0.2, 1), (0.2, 1)),
                points((0.4, 0), (1.3, 1)),
            ],
        )
        return
    this = Retraining(
        podlift_vertex, project, DIGITS, min_gain="0.001", ask_below="0.1",
        guards=["accuracy >= 0.5", "accuracy[eights] >= champion - 0.1"],
    )  # fmt: skip
    this.put(this.test, "images", images(0, 297))
    yield this, [images(297, 357), images(357, 700), images(700, 1400, corrupted=True), images(700, 1797)]


def test_week_two_is_promoted_week_three_refused_week_four_approved_and_a_rollback_restores_week_one(
    weeks: tuple[Retraining, list[bytes]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    this, added = weeks
    found = []
    for week, rows in enumerate(added, 1):
        this.put(this.rows, f"week-{week}", rows)
        found.append(this.pass_week())
        if week == 3:
            open_store(this.rows.rstrip("/")).delete("week-3")
    assert [each.state for each in found] == ["SUCCEEDED"] * 4, found
    outcomes = [each.registered.outcome if each.registered else "" for each in found]
    assert outcomes == ["promoted", "promoted", "kept", "asks"], [each.registered for each in found]
    model = sdk.models(this.schedule.root)["digits"]
    assert [each.record.run for each in model.versions()] == [each.run for each in found]
    assert [model.state(each) for each in model.versions()] == [
        "was champion",
        "champion",
        "registered",
        "awaits approval",
    ]
    assert [json.loads(line)["event"] for line in this.notices()] == ["promoted", "promoted", "asks"]
    assert "podlift models approve digits 4" in json.loads(this.notices()[-1])["text"]
    first = {each.path: each.parts for each in model.version(1).files()}
    kept = Path(model.version(1).download(tmp_path / "week-1"))

    assert app.run(["models", "approve", "digits", "4", "--root", this.schedule.root]) == 0
    assert model.champion().number == 4
    assert [model.rollback().number, model.rollback().number] == [2, 1]
    assert {each.path: each.parts for each in model.champion().files()} == first
    again = Path(model.champion().download(tmp_path / "again"))
    assert {each.name: each.read_bytes() for each in again.iterdir()} == {
        each.name: each.read_bytes() for each in kept.iterdir()
    }
    assert [(move.before, move.champion, move.cause) for move in model.history()] == [
        (0, 1, "promote"), (1, 2, "promote"), (2, 4, "approve"), (4, 2, "rollback"), (2, 1, "rollback"),
    ]  # fmt: skip
    capsys.readouterr()
    assert app.run(["schedule", "history", "weekly", "--root", this.schedule.root]) == 0
    shown = capsys.readouterr().out
    assert "version 2 of 'digits' was promoted" in shown and "version 3 of 'digits' was not promoted" in shown
