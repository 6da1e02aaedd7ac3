"""Runs, schedules, models and sweeps for pages, which were never started, and a corpus of the texts of a hostile run."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zoneinfo import ZoneInfo

from registered_models import candidate
from support import FINISHED_RUN, FakeClock, finished_run

from sdk.job.gates import Gate
from sdk.job.layout import RunPaths
from sdk.job.plan import Plan
from sdk.model_registry import evidence
from sdk.model_registry.decision import Evaluation, decide
from sdk.model_registry.models import Model
from sdk.model_registry.records import VersionData
from sdk.schedules.records import Book, ScheduleRecord, ScheduleSpec, SlotRecord, key_of, run_id_of

# When the runs were submitted.
CREATED = 1_795_193_567.0

# Names, metrics and log lines that break out of something if they are not escaped: HTML, attributes, scripts, JSON in a script,
# templates, Markdown, terminals, directions of text, and what UTF-8 lacks.
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]><svg onload=alert(1)>",
    "<img src=x onerror=alert(1)>",
    '" autofocus onfocus="alert(1)',
    "' onmouseover='alert(1)",
    "</pre></table></main><iframe src=//evil.example>",
    "</style><style>*{display:none}",
    "</textarea></title><base href=//evil.example>",
    "{{ 7 * 7 }}{% for x in y %}",
    "&lt;b&gt;&#60;script&#62;",
    "javascript:alert(1)",
    "[x](javascript:alert(1)) ![y](//evil.example) | `z` ```",
    "@everyone",
    "\x1b]0;title\x07\x1b[31m<b>\x1b[999999999999m\x1b[2J\x1b[",
    "\u202etxt.exe\u2066",
    "\u2028\u2029\x00\x0b\x9b",
    "\ud800",
    "__proto__",
    "constructor",
    "",
    "x" * 5000,
)


def page_run(
    root: Path, name: str, records: Any = (), *, failure="", traceback="", log="", created=CREATED, args=None
) -> RunPaths:
    """Make an ended run of two tasks."""
    job = json.loads((FINISHED_RUN / "plan.json").read_text())["job"]
    run = finished_run(root, name, job={**job, "args": args})
    if failure:
        ended = {"task": "chief-0", "message": failure, "traceback": traceback, "log": ""}
        final = {"state": "FAILED", "reason": "user_error", "failure": ended}
        path = next(Path(run.events).glob("*.final.json"))
        path.write_text(json.dumps({"data": final, "time": created + 60, "version": 1}))
    lines = (json.dumps({"time": created + 1, "epoch": 1, **record}) for record in records)
    Path(run.metrics(1, "chief-0")).write_text("".join(f"{line}\n" for line in lines))
    Path(run.log(1, "chief-0")).write_text(log, errors="backslashreplace")
    return run


def preempt(run: RunPaths, after_s: float, step: int, until_s: float, created: float = CREATED) -> None:
    """Let a machine of an ended run be taken away after some seconds: a second attempt continues at a step."""
    events = Path(run.events)
    for path in [*events.glob("0001.*"), *events.glob("*.final.json")]:
        path.unlink()

    def put(name: str, at_s: float, **data: object) -> None:
        number = 1 + len(list(events.glob(f"{name.rpartition('.')[0]}.*")))
        source, kind = name.rsplit(".", 1)
        text = json.dumps({"data": data, "time": created + at_s, "version": 1})
        (events / f"{source}.{number:06d}.{kind}.json").write_text(text)

    tasks = ("chief-0", "worker-0")
    for attempt, begin, end in ((1, 4.0, after_s), (2, after_s + 9, until_s)):
        put(f"{attempt:04d}.supervisor.attempt_started", begin, pids=dict.fromkeys(tasks, 7), addresses={})
        if attempt == 2:
            put("0002.supervisor.continued", begin + 9, step=step)
        for task in tasks:
            put(f"{attempt:04d}.{task}.entry", begin + 6)
            put(f"{attempt:04d}.{task}.first_step", begin + 14)
        if attempt == 1:
            failure = {"task": "worker-0", "message": "worker-0 got SIGTERM", "traceback": "", "log": ""}
            why = f"Attempt 2 continues at step {step}."
            put("0001.supervisor.restarting", end, reason="preempted", failure=failure, why=why)
        else:
            for task in tasks:
                put(f"0002.{task}.done", end - 1)
                put("0002.supervisor.exited", end - 1, code=0, task=task)
            put("0002.supervisor.stopping", end, reason="done", state="SUCCEEDED")
    put("0000.supervisor.final", until_s + 1, failure=None, reason="done", state="SUCCEEDED")
    first = Path(run.metrics(1, "chief-0"))
    lines = first.read_text().splitlines(keepends=True)
    second = Path(run.metrics(2, "chief-0"))
    second.parent.mkdir(parents=True)
    first.write_text("".join(line for line in lines if json.loads(line)["step"] <= step))
    second.write_text("".join(line for line in lines if json.loads(line)["step"] > step))
    log = Path(run.log(2, "chief-0"))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(Path(run.log(1, "chief-0")).read_text())


def epochs(count: int, lr: float, *, cut: int = 0, seconds: float = 11.0) -> list[dict[str, Any]]:
    """Return the metrics of epochs of 60 steps, the last one without its last `cut` steps."""
    records = []
    for epoch in range(count):
        step = 60 * (epoch + 1) - (cut if epoch == count - 1 else 0)
        loss = (2.3 - lr) * math.exp(-step * (0.002 + lr / 12)) + 0.03 + lr / 4 + 0.01 * math.sin(epoch * 2.3)
        measured = (loss, 1 - loss / 2.6, loss * 1.08 + 0.02, 0.99 - loss / 2.5)
        values = dict(zip(("loss", "accuracy", "val_loss", "val_accuracy"), measured, strict=True))
        records.append({"step": step, "epoch": epoch, "time": CREATED + 20 + seconds * (epoch + 1), "metrics": values})
    return records


def gallery(root: Path, now: float, trace: str) -> None:
    """Make a root with runs of all kinds, two schedules, two models, and two sweeps."""
    log = "".join(
        f"\x1b[36mEpoch {epoch}/20\x1b[0m\n60/60 \x1b[32m━━━━━━━━━━━━\x1b[0m 11s 183ms/step - loss: {2.1 / epoch:.4f}\n"
        for epoch in range(1, 21)
    )
    newest = datetime.fromtimestamp(now, ZoneInfo("Europe/Berlin")).replace(hour=3, minute=0, second=0, microsecond=0)
    newest -= timedelta(days=newest.timestamp() > now - 3600)
    states = ["SUCCEEDED"] * 30
    states[7] = states[19] = "SKIPPED"
    states[12] = "FAILED"
    nightly = page_schedule(root, "nightly", states, newest=newest, max_cost_usd_per_month=60.0)
    page_schedule(root, "weekly", ["SUCCEEDED", "SUCCEEDED", "FAILED", "FAILED", "FAILED"], newest=newest)
    Book(str(root)).change("weekly", paused="after 3 failures in a row")
    values = [0.912, 0.931, 0.929, 0.944, 0.941, 0.953, 0.958, 0.949, 0.964]
    page_model(root, "digits", values, [run for run in nightly if run][-len(values) :], asks=True)
    page_model(root, "mnist", [0.981, 0.979, 0.988], [f"mnist-aaaaa{letter}" for letter in "abc"])
    page_sweep(root, "digits-search", 40, max_cost_usd=12.0)
    trials = page_sweep(root, "mnist", 7, of=12, end="")
    about = {"log": log, "created": CREATED}
    page_run(root, trials[0].run, epochs(9, 0.05), args=dict(trials[0].params), **about)
    run = page_run(root, "digits-k3f7aa", epochs(20, 0.1), args={"lr": 0.1, "batch": 64, "dropout": 0.2}, **about)
    preempt(run, 110.0, 540, 262.0)
    page_run(root, "digits-p7x2bc", epochs(20, 0.03), args={"lr": 0.03, "batch": 64, "dropout": 0.2}, **about)
    page_run(root, "digits-q4m6de", epochs(14, 0.01, cut=23), args={"lr": 0.01, "batch": 128}, **about)
    bad = {"failure": "ValueError: the loss is not finite: lower the learning rate", "traceback": trace}
    page_run(root, "mnist-w5r3fg", epochs(3, 1.9), args={"lr": 3.0, "batch": 32}, **bad, **about)
    for run_id in [run for run in nightly if run][-2:]:
        page_run(root, run_id, epochs(20, 0.07), args={"lr": 0.07, "batch": 64, "dropout": 0.1}, **about)


def page_schedule(
    root: Path, name: str, states: Iterable[str], *, newest: datetime, apart=timedelta(days=1), job=None, **spec: Any
) -> list[str]:
    """Make a schedule with a slot for each state up to `newest`, and return the ids of their runs."""
    stored = json.loads((FINISHED_RUN / "plan.json").read_text())
    stored["job"] |= job or {}
    book, plan = Book(str(root)), Plan.from_json(json.dumps(stored), "the plan", root=str(root))
    rules = ScheduleSpec(name=name, **{"cron": "0 3 * * *", "time_zone": "Europe/Berlin", **spec})
    about = {"bundle": plan.code.digest, "plan": book.put_plan(name, plan), "since": newest.timestamp()}
    record = ScheduleRecord(id="0000", spec=rules, created=0.0, **about)
    assert book.add(record)
    runs, listed = [], [*states]
    for ago, state in enumerate(reversed(listed)):
        slot = newest - ago * apart
        run = run_id_of(record, key_of(slot), slot)
        began = slot.timestamp()
        why = {"FAILED": "ValueError: the loss is not finite", "SKIPPED": "data_changed(train): the data are the same"}
        times = {"taken": began, "reason": why.get(state, "")}
        if state != "SKIPPED":
            times |= {"run": run, "cost_usd": 1.15 + 0.07 * (ago % 5), "started": began}
        if state not in ("SKIPPED", "RUNNING"):
            times |= {"ended": began + 700 + 40 * (ago % 5)}
        book.take(record, SlotRecord(key=key_of(slot), slot=slot.isoformat(), state=state, **times))
        runs.append(run)
    return runs[::-1]


def page_model(root: Path, name: str, values: Sequence[float], runs: Sequence[str], *, asks: bool = False) -> Model:
    """Make a model with a version for each value, of which each better one was promoted by a gate; the last one may ask."""
    clock = FakeClock(CREATED - 86_400 * len(values))
    model, best = Model(str(root), name, clock), (0, 0.0)
    gate = Gate(evaluate="quality:measure", data="test", metric="accuracy", guards=("loss <= champion * 1.05",))
    data = VersionData(location="/data/test", digest="d" * 64)
    for at, (value, run) in enumerate(zip(values, runs, strict=True)):
        clock.time += 86_400
        with TemporaryDirectory() as folder:
            Path(folder, "model.keras").write_bytes(b"weights" * (1000 + at))
            version = model.add(candidate(folder, run, run_url=f"{root}/runs/{run}", args=("--lr", str(at))))
        number, theirs = best
        mine = Evaluation(metrics={"accuracy": value, "loss": 1 - value})
        other = Evaluation(metrics={"accuracy": theirs, "loss": 1 - theirs}) if number else None
        decision = decide(gate, mine, other)
        if asks and at == len(values) - 1:
            why = f"accuracy is {value}, better by less than ask_below, 0.05"
            decision = replace(decision, outcome="ask", reason=why)
        made = evidence.of(decision, version.record, number, gate, data, clock.time, mine, other)
        evidence.write(model.store, made)
        if made.outcome == "promote":
            model.promote(version.number, expect=number, note=made.reason)
            best = version.number, value
    return model


def page_sweep(root: Path, name: str, trials: int = 20, *, of: int = 0, end: str = "DONE", **spec: Any) -> list[Any]:
    """Make a sweep by ASHA with trials of 1, 3 or 9 epochs, the last one without an end, and return its trials."""
    from sdk.sweeps import records, space
    from sdk.sweeps.study import COMPLETE, PRUNED, Study

    stored = json.loads((FINISHED_RUN / "plan.json").read_text())
    plan = Plan.from_json(json.dumps(stored), "the plan", root=str(root))
    choices = {"optimizer": "adam,sgd,adamw", "units": "16,32,64,128"}
    options = {"dropout": "0.0..0.5:0.1", "lr": "log:1e-4..1e-1", **choices}
    about = {"metric": "val_accuracy", "mode": "max", "trials": of or trials, "pruner": "asha", "sampler": "random"}
    made = records.SweepSpec(name=name, space=space.of(options), parallel=2, **{**about, **spec})
    book = records.Book(str(root))
    about = {"bundle": plan.code.digest, "plan": book.put_plan(name, plan), "args": None, "created": CREATED}
    record = records.SweepRecord(id=f"{len(name):08x}", spec=made, **about)
    assert book.add(record)
    study = Study(book.store, record)
    for number in range(trials):
        known = study.trials()
        assert study.claim(known, study.journal.position, {"driver": "x", "claimed": CREATED, "submitted": True})
        trial = study.trials()[number]
        lr, units = float(trial.params.get("lr", 0.01)), int(trial.params.get("units", 32))
        most = 0.97 - 0.09 * abs(math.log10(lr) + 2.2) - 1.2 / units
        epochs = (9, 1, 3)[number % 3]
        values = {epoch: round(most * (1 - 0.6 * 0.55**epoch), 6) for epoch in range(1, epochs + 1)}
        study.report(trial, {epoch: value if made.mode == "max" else 1 - value for epoch, value in values.items()})
        if number < trials - 1 or end:
            study.note(trial, end={"time": CREATED, "fatal": False, "spent_usd": 0.04 * epochs})
            why = f"not among the best third after {epochs} epochs" if epochs < 9 else ""
            study.tell(study.trials()[number], PRUNED if why else COMPLETE, why)
    if end:
        book.put_end(record, records.End(state=end))
    return study.trials()


class Elements(HTMLParser):
    """How often each element is there, the names of its attributes, and the content of the block of data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.data, self._in_data = "", False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = tuple(name for name, _ in attrs)
        # Colours of terminals are spans with classes.
        self.found[tag, names] += (tag, names) != ("span", ("class",))
        self._in_data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        self.data += data if self._in_data else ""
        self._in_data = False
