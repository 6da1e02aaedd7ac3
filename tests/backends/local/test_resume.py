"""A run that starts again, by itself or with `podlift resume`: with a further attempt, in the same directory."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from local_runs import attempts_said, events
from support import LIMIT_S, WAITS, until

import sdk
from sdk.cli import app

pytestmark = [pytest.mark.process, pytest.mark.spread]

PROGRAM = """
import os, time, sdk
sdk.context().report(dict(loss=1.0))
print("attempt", os.environ["PODLIFT_ATTEMPT"], flush=True)
if os.environ["PODLIFT_ATTEMPT"] == "1":
    {first}
"""


def submit(first: str, **job) -> sdk.Run:
    Path("train.py").write_text(PROGRAM.format(first=first))
    return sdk.submit(sdk.Job("train.py", **job))


def test_the_first_of_several_resumes_starts_the_second_attempt_of_a_failed_run(write) -> None:
    run = submit("raise SystemExit('disk full')")
    assert run.wait(LIMIT_S).state is sdk.State.FAILED
    with pytest.raises(sdk.InputError, match="timeout_s: Must be greater than 0"):
        run.resume(timeout_s=-1)
    assert run.status().state is sdk.State.FAILED
    other = sdk.attach(run.url)
    run.resume()
    with pytest.raises(sdk.InputError):
        other.resume()
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2)
    assert attempts_said(run) == ["attempt 1", "attempt 2"]
    assert [info.status.state for info in sdk.runs()] == [sdk.State.SUCCEEDED]
    assert [record["attempt"] for record in run.metrics()] == [1, 2]
    assert {event.source for event in events(run, "started")} == {"supervisor", "supervisor-1"}
    with pytest.raises(sdk.InputError, match="has succeeded: there is nothing to resume"):
        run.resume()


def test_a_run_that_reached_its_time_limit_goes_on_with_another_one(write, capsys) -> None:
    run = submit("time.sleep(600)", limits={"timeout_s": 2.0, "grace_s": 0.1})
    assert run.wait(LIMIT_S).reason is sdk.Reason.TIMEOUT
    assert app.run(["resume", run.id, "--timeout", "300s", "--max-cost-usd", "7"]) == 0
    said = capsys.readouterr().err.splitlines()
    # The metrics of the first attempt, then the metrics of the second below a heading.
    assert said[0] == "before:" and [line.split(" attempt ")[1] for line in said if " attempt " in line] == ["2:"]
    again = sdk.attach(run.id)
    assert (again.plan.job.limits.timeout_s, again.plan.job.limits.max_cost_usd) == (300.0, 7.0)
    assert attempts_said(again) == ["attempt 1", "attempt 2"]


def test_a_cancelled_run_can_be_resumed_and_cancelled_again(write) -> None:
    run = submit("pass\ntime.sleep(600)")
    for attempts in (1, 2):
        until(lambda count=attempts: len(attempts_said(run)) == count)
        run.cancel(grace_s=0)
        status = run.wait(LIMIT_S)
        assert (status.state, status.attempts) == (sdk.State.CANCELLED, attempts)
        if attempts == 1:
            run.resume()


def test_a_refused_resume_names_everything_that_is_missing(write, monkeypatch) -> None:
    monkeypatch.setenv("TOKEN", "x")
    run = submit("raise SystemExit(1)", env={"TOKEN": sdk.FromCaller()})
    run.wait(LIMIT_S)
    monkeypatch.delenv("TOKEN")
    Path(run.plan.bundle).unlink()
    Path("train.py").write_text("")
    with pytest.raises(sdk.InputError) as caught:
        run.resume()
    assert "The code of the run" in str(caught.value)
    assert "TOKEN is to be copied from here" in str(caught.value)


@pytest.mark.shows("a bit of the code archive flips")
def test_a_flipped_bit_in_a_bundle_costs_no_attempt_of_the_next_submit_or_resume(write) -> None:
    run = submit("raise SystemExit(1)")
    run.wait(LIMIT_S)
    archive = Path(run.plan.bundle)
    whole = archive.read_bytes()
    damaged = bytes([whole[0] ^ 1]) + whole[1:]
    archive.write_bytes(damaged)
    run.resume()
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    archive.write_bytes(damaged)
    again = sdk.submit("train.py")
    assert again.plan.bundle == run.plan.bundle
    assert "damaged" not in str(again.wait(LIMIT_S).failure)
    assert archive.read_bytes() == whole


def test_cancelling_ends_the_wait_for_a_restart(write) -> None:
    # Each attempt ends before the last one: that is no crash loop, and from the second on the delay doubles.
    write("train.py", """
        import os, sdk, signal
        sdk.context().report({"loss": 1.0}, step=9 - int(os.environ["PODLIFT_ATTEMPT"]))
        os.kill(os.getpid(), signal.SIGKILL)
        """)  # fmt: skip
    run = sdk.submit("train.py", retry_infrastructure=1000)
    until(lambda: len(events(run, "restarting")) == 5, run.why)
    assert events(run, "restarting")[-1].data["delay_s"] == 8
    asked = time.time()
    run.cancel()
    assert run.wait(LIMIT_S).state is sdk.State.CANCELLED
    assert [begun for begun in events(run, "attempt_started") if begun.time > asked] == []
    assert run.status().created + run.status().timings["finished"] - asked < 8


def test_an_edited_source_changes_neither_a_run_nor_its_restart(write) -> None:
    write("helper.py", "WORD = 'of this program'")
    ends = "if os.environ['PODLIFT_ATTEMPT'] == '1': os._exit(75)"
    write("train.py", f"{WAITS}import helper; print('attempt', helper.WORD)\n{ends}")
    run = sdk.submit("train.py", retry_preemptions=None)
    write("train.py", "print('attempt of another program')")
    write("helper.py", "WORD = 'of another program'")
    Path(run.url, "go").touch()
    status = run.wait(LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2)
    assert attempts_said(run) == ["attempt of this program"] * 2


@pytest.mark.full
def test_a_program_that_reports_nothing_lives_as_long_as_it_prints_or_works(write) -> None:
    busy = "import time\nuntil = time.monotonic() + 3\nwhile time.monotonic() < until: pass\nprint('done')"
    talking = "import time\nfor i in range(15): print(i, flush=True); time.sleep(0.2)"
    runs = []
    for program in (busy, talking, "import time; time.sleep(600)"):
        write("train.py", program)
        runs.append(sdk.submit("train.py", limit_hang="1s"))
    assert [run.wait(LIMIT_S).state for run in runs[:2]] == [sdk.State.SUCCEEDED] * 2
    status = runs[2].wait(LIMIT_S)
    assert (status.reason, "no step was ever reported" in status.failure.message) == (sdk.Reason.HUNG, True)
