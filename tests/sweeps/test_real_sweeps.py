"""Sweeps of real runs: their driver is a process, and it and the runs are killed."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from paper_trials import World
from support import LIMIT_S, REPO, Shown, until

import sdk
from sdk.hardware import accelerators, pricing
from sdk.job.plan import Plan
from sdk.records.recorder import read_events
from sdk.sweeps.records import Book, End
from sdk.testing.vertex import Cloud

pytestmark = [pytest.mark.process]

QUICK = """
import argparse, time, sdk
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
options = parser.parse_args()
ctx = sdk.context()
for epoch in range(1, 5):
    time.sleep(0.1)
    ctx.report({"score": epoch * options.lr}, step=epoch)
"""
SPACE = {"lr": sdk.LogUniform(1e-4, 1e-1)}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def quick(tmp_path: Path) -> Path:
    program = tmp_path / "quick" / "train.py"
    program.parent.mkdir()
    program.write_text(QUICK)
    return program


def kill_driver(sweep: sdk.Sweep) -> bool:
    beat = Book(sweep.root).heartbeat(sweep.read().record)
    try:
        os.kill(int(beat.process.split(":")[1]), signal.SIGKILL)
    except (ProcessLookupError, AttributeError):
        return False
    return True


def kill_trial(sweep: sdk.Sweep) -> None:
    """Kill the supervisor of a trial that is going on."""
    for trial in sweep.trials():
        if trial.state == "RUNNING" and trial.notes.get("submitted"):
            started = read_events(sdk.attach(trial.run, root=sweep.root).plan.paths, ("started",))
            for event in started[-1:]:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(int(event.data["supervisor"].split(":")[1])).kill()
                    return


def undisturbed(sweep: sdk.Sweep) -> list[tuple[object, ...]]:
    assert sweep.wait(LIMIT_S) is not None
    return [(trial.number, trial.params, trial.value) for trial in sweep.trials()]


def starts(sweep: sdk.Sweep) -> Counter[int]:
    """How many runs each number of a trial has."""
    name = f"{sweep.name}-"
    runs = sdk.runs(root=sweep.root, limit=None, name=f"{name}*")
    return Counter(int(run.id[len(name) : len(name) + 3]) for run in runs)


def spent_usd(sweep: sdk.Sweep) -> float:
    return sum(sdk.attach(trial.run, root=sweep.root).status().spent_usd for trial in sweep.trials())


@pytest.mark.shows("Sweeps search the arguments of a program")
def test_a_sweep_goes_on_without_its_client_and_after_the_death_of_its_driver(quick: Path, root: Path) -> None:
    about = {"metric": "score", "trials": 4, "parallel": 2, "sampler": "random", "root": root}
    sweep = sdk.sweep(quick, SPACE, name="killed", **about)
    until(lambda: any(trial.curve for trial in sweep.trials()))
    assert kill_driver(sweep)
    until(lambda: not sweep.read().driven)
    assert sweep.read().state == "STOPPED"
    found = undisturbed(sweep)
    assert starts(sweep) == Counter(range(4))
    assert found == [(number, params, 4 * params["lr"]) for number, params, _ in found]
    assert found == undisturbed(sdk.sweep(quick, SPACE, name="other", **about))


def podlift(*words: str) -> Shown:
    done = subprocess.run([sys.executable, "-m", "sdk", *words], capture_output=True, text=True, cwd=REPO)
    return Shown(done.returncode, done.stdout, done.stderr)


def test_the_command_creates_shows_and_continues_a_sweep(quick: Path, root: Path) -> None:
    words = ["sweep", "create", str(quick), "--space", "lr=log:1e-4..1e-1", "--metric", "score", "--trials", "2"]
    shown = podlift(*words, "--name", "one", "--root", str(root), "--json")
    facts = json.loads(shown.stdout)
    assert (shown.code, facts["state"], len(facts["done"])) == (0, "DONE", 2)
    assert "price        nothing is billed" in shown.stderr
    best = podlift("sweep", "best", "one", "--root", str(root)).stdout.split()
    assert best == ["--lr", str(facts["best"]["params"]["lr"])]
    journal = root / "journal.log"
    assert podlift("sweep", "status", "one", "--root", str(root), "--journal", str(journal)).code == 0
    assert journal.read_text().startswith('{"op_code":0')
    refused = podlift(*words[:4], "lx=1..2", *words[5:], "--root", str(root))
    assert refused.code == 2
    assert "space: train.py takes no argument --lx. Known: lr." in refused.stderr


def test_the_best_arguments_are_words_of_a_shell_that_evaluates_them(world: World) -> None:
    title = "it's $HOME, two  words\n*"
    sweep = world.create(space={"lr": [0.01, 0.02], "units": [16], "title": [title]}, trials=2)
    world.driver().run()
    best = shlex.join([sys.executable, "-m", "sdk", "sweep", "best", "one", "--root", world.root])
    python = shlex.join([sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"])
    script = f"eval {shlex.quote(python)}' '\"$({best})\""
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, cwd=REPO, check=True).stdout
    assert json.loads(shown) == ["--lr", str(sweep.best().params["lr"]), "--units", "16", "--title", title]


@pytest.mark.full
def test_on_a_cloud_the_client_that_waits_drives_the_sweep_or_a_server(quick: Path, podlift_vertex: Cloud) -> None:
    backend = podlift_vertex.backend()
    about = {"metric": "score", "trials": 3, "parallel": 1, "timeout": "1h", "max_cost_usd": 50}
    sweep = sdk.sweep(quick, SPACE, name="cloudy", backend=backend, **about)
    assert (sweep.read().state, sweep.trials()) == ("STOPPED", [])
    following = sweep.following()
    assert next(view for view in following if view.trials and not view.trials[0].is_open).end is None
    following.close()
    with subprocess.Popen([sys.executable, "-m", "sdk", "schedule", "serve", "--root", sweep.root], cwd=REPO) as server:
        until(lambda: sweep.read().end)
        server.send_signal(signal.SIGINT)
    best = sweep.best()
    assert best == max(sweep.trials(), key=lambda trial: trial.params["lr"])
    assert [trial.state for trial in sweep.trials()] == ["COMPLETE"] * 3


@pytest.mark.full
def test_on_a_cloud_the_waiting_client_drives_the_sweep_until_its_limit_on_the_cost(
    quick: Path, podlift_vertex: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the emulator nothing is billed: a price of 0.1 USD a second, and 60 USD for a trial, stands in."""
    machine = pricing.price(pricing.Rental(pools=accelerators.pools(), timeout_s=600.0))
    monkeypatch.setattr(Plan, "prices", (replace(machine, own=360.0, at_least=360.0),))
    about = {"metric": "score", "parallel": 2, "timeout": "10m", "name": "cloudy", "backend": podlift_vertex.backend()}
    sweep = sdk.sweep(quick, SPACE, trials=2, max_cost_usd=120, **about)
    assert (sweep.read().state, sweep.trials()) == ("STOPPED", [])
    sweep.wait(LIMIT_S)
    assert (sweep.read().end.state, len(sweep.trials())) == ("DONE", 2)
    # There is money for one more.
    limit = spent_usd(sweep) + 60
    sdk.sweep(quick, SPACE, trials=8, max_cost_usd=limit, **about)
    best = sweep.wait(LIMIT_S)
    trials, spent = sweep.trials(), spent_usd(sweep)
    assert [trial.state for trial in trials] == ["COMPLETE"] * 3
    assert best == max(trials, key=lambda trial: trial.params["lr"])
    assert limit - 60 < spent <= limit
    why = f"budget: {spent:.2f} USD of {limit:.2f} USD are spent, and this trial may cost 60.00 USD"
    assert sweep.read().end == End(state="DONE", why=why)


@pytest.mark.full
@pytest.mark.tensorflow
def test_twenty_trials_over_digits_survive_five_kills_of_driver_and_trials(root: Path) -> None:
    program = REPO / "jobs" / "digits" / "train.py"
    about = {"metric": "val_accuracy", "trials": 20, "parallel": 2, "sampler": "random", "root": root}
    space = {"epochs": sdk.IntUniform(4, 24)}
    sweep = sdk.sweep(program, space, name="killed", seed=3, **about)
    for kill in range(5):
        done = len([trial for trial in sweep.trials() if not trial.is_open])
        until(lambda done=done: [trial for trial in sweep.trials() if not trial.is_open][done:] or sweep.read().end)
        kill_trial(sweep)
        assert kill_driver(sweep), kill
        until(lambda: not sweep.read().driven)
        sweep.resume()
    found = undisturbed(sweep)
    assert starts(sweep) == Counter(range(20))
    assert found == undisturbed(sdk.sweep(program, space, name="other", seed=3, **about))
