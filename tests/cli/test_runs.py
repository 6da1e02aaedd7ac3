"""The list of runs, as a person asks for it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support import FINISHED_RUN, finished_run, holds

import sdk
from sdk.records import summaries
from sdk.records.spending import Spent, booked


@pytest.fixture
def made(root: Path):
    """Make an ended run: `made("digits-aaaaaa", state="FAILED", reason="user_error", age_s=3600)`."""

    def make(name: str, state="SUCCEEDED", reason="done", age_s=7200.0, best="", spent=None, **metrics) -> None:
        job = json.loads((FINISHED_RUN / "plan.json").read_text())["job"]
        run = finished_run(root, name, job={**job, "checkpoints": {"best": best or None}})
        created = time.time() - age_s
        for path in Path(run.events).iterdir():
            record = json.loads(path.read_text())
            record["time"] = created + (0 if "submitted" in path.name else 192)
            if ".final." in path.name:
                record["data"] = {"state": state, "reason": reason, "failure": None, **(booked(spent) if spent else {})}
            path.write_text(json.dumps(record))
        if metrics:
            record = {"time": created, "step": 1, "epoch": 1, "metrics": metrics}
            Path(run.metrics(1, "chief-0")).write_text(json.dumps(record) + "\n")
        os.utime(run.plan, (created, created))
        summaries.write(run)

    return make


def test_the_list_says_state_age_duration_metric_and_backend(made, here, root: Path) -> None:
    made("digits-aaaaaa", loss=0.25, val_loss=0.123456)
    made("mnist-bbbbbb", "FAILED", "user_error", age_s=200.0, best="max:acc", acc=None, loss=0.5)
    (root / "runs" / "broken").mkdir()
    lines = here("list").stdout.splitlines()
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in lines}
    assert rows["digits-aaaaaa"] == ["SUCCEEDED", "2 h", "3 min 12 s", "val_loss 0.1235", "local"]
    assert rows["mnist-bbbbbb"] == ["FAILED user_error", "3 min", "3 min 12 s", "acc nan", "local"]
    assert rows["broken"][:4] == ["UNREADABLE", "-", "-", "-"]
    assert "is not a run of podlift" in rows["broken"][4]


def test_the_list_is_cut_and_filtered(made, here) -> None:
    for number, state in enumerate(("SUCCEEDED", "FAILED", "CANCELLED", "FAILED")):
        made(f"{'mnist' if number % 2 else 'digits'}-{'abcd'[number] * 6}", state, "killed", age_s=1000.0 - number)

    def listed(*words: str) -> list[str]:
        shown = here("list", *words)
        assert shown.code == 0, shown
        return [line[-6:] for line in (row.split("\t")[0] for row in shown.stdout.splitlines())]

    assert listed() == ["dddddd", "cccccc", "bbbbbb", "aaaaaa"]
    assert listed("-n", "1") == ["dddddd"]
    assert listed("--state", "failed", "-n", "1") == ["dddddd"]
    assert listed("--state", "failed", "--state", "CANCELLED") == ["dddddd", "cccccc", "bbbbbb"]
    assert listed("--name", "digits") == listed("--name", "dig*") == ["cccccc", "aaaaaa"]
    assert listed("--backend", "local", "--name", "mnist", "--state", "succeeded") == []
    assert [info.id for info in sdk.runs(state="cancelled")] == ["digits-cccccc"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--state", "failing"), "Did you mean 'FAILED'?"),
        (("--backend", "vortex"), "Did you mean 'vertex'?"),
        (("--backend", "vertex"), "live in a bucket, but none is set. Next: --root gs://"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(here, words: tuple[str, ...], said: str) -> None:
    shown = here("list", *words)
    assert (shown.code, said in shown.stderr) == (2, True), shown


def test_a_row_fits_into_80_columns(made, here, on_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    made("digits-aaaaaa", "FAILED", "user_error", val_accuracy=0.123456)
    on_terminal()
    monkeypatch.setenv("COLUMNS", "80")
    head, row = here("list").stdout.splitlines()
    assert head.split() == ["run", "state", "age", "took", "metric", "backend"]
    assert row.split("  ")[0] == "digits-aaaaaa" and "val_accuracy 0.1235" in row
    made("digits-bbbbbb", val_accuracy=0.123456)
    infos = [replace(info, place="vertex, emulator at 127.0.0.1:36677") for info in sdk.runs(name="digits-bbbbbb")]
    monkeypatch.setattr("sdk.cli.look.api.list_runs", lambda *_: (infos, []))
    _, row = here("list").stdout.splitlines()
    assert row.rstrip().endswith("val_accuracy 0.1235  vertex, emulator"), "without its address"
    monkeypatch.setenv("COLUMNS", "120")
    assert "vertex, emulator at 127.0.0.1:36677" in here("list").stdout


def test_runs_with_a_price_show_their_cost(made, here, on_terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The price of a run is in the final records of its jobs, whoever ran it."""
    made("dear-aaaaaa", spent=Spent(seconds=7200.0, usd=22.08), loss=0.25)
    made("known-bbbbbb", "FAILED", "budget", spent=Spent(seconds=90.0, usd=0.5, at_least=True))
    made("emulated-cccccc", spent=Spent(seconds=90.0))
    costs = {line.split("\t")[0].partition("-")[0]: line.split("\t")[6] for line in here("list").stdout.splitlines()}
    assert costs == {"dear": "22.08 USD", "known": "at least 0.50 USD", "emulated": "-"}
    listed = {each["id"]: each["spent"] for each in json.loads(here("list", "--json").stdout)}
    assert listed["dear-aaaaaa"] == {"seconds": 7200.0, "usd": 22.08, "at_least": False}
    assert listed["known-bbbbbb"] == {"seconds": 90.0, "usd": 0.5, "at_least": True}
    assert listed["emulated-cccccc"] is None
    status = here("status", "known-bbbbbb").stdout
    assert "spent      at least 0.50 USD in 1 min 30 s, without boot disks\n" in status
    # Without --code current: nothing is wrong with the program.
    assert status.endswith(" · podlift resume known-bbbbbb\n")
    assert "spent" not in here("status", "emulated-cccccc").stdout
    assert json.loads(here("status", "dear-aaaaaa", "--json").stdout)["spent"]["usd"] == 22.08
    why = here("why", "known-bbbbbb").stdout
    holds(why, "max_cost_usd (--max-cost-usd)", "\nSpent: at least 0.50 USD in 1 min 30 s, without boot disks.\n")
    on_terminal()
    monkeypatch.setenv("COLUMNS", "80")
    head, *shown = here("list").stdout.splitlines()
    assert head.split()[-1] == "spent" and any(line.rstrip().endswith("22.08 USD") for line in shown)


def test_a_resume_takes_other_limits(made, here, write) -> None:
    made("digits-aaaaaa", "FAILED", "timeout")
    wrong = here("resume", "digits-aaaaaa", "--timeout", "soon")
    assert wrong.code == 2 and "--timeout: must be a duration" in wrong.stderr
    negative = here("resume", "digits-aaaaaa", "--max-cost-usd", "-3")
    assert negative.code == 2 and "max_cost_usd: Must be greater than 0. Received: -3" in negative.stderr
    shown = here("resume", "--help").stdout
    assert "--timeout DURATION" in shown and "--max-cost-usd USD" in shown
