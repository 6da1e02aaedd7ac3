"""Drivers of a sweep that are killed, race, prune and resume: each trial is one run, with the same parameters."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paper_trials import SPACE, PaperTrials, World
from support import REPO

import sdk
from sdk import Reason, State, Status
from sdk.cli import app
from sdk.errors import CorruptObjectError, CorruptRunError, StoreUnavailableError
from sdk.job.capabilities import LOCAL
from sdk.process.heartbeats import Heart
from sdk.schedules.server import Server
from sdk.storage.posix_store import PosixStore
from sdk.storage.store import Stat
from sdk.sweeps import creation, handle
from sdk.sweeps import driver as driving
from sdk.sweeps.creation import start
from sdk.sweeps.journal import SNAPSHOT_EVERY, StoreJournal
from sdk.sweeps.reader import Reader
from sdk.sweeps.records import Book, heartbeat_key
from sdk.sweeps.serving import Drivers
from sdk.sweeps.study import Study, Trial

# Real trainings, recorded once: by learning rate, and for 8, 16, 32 and 64 units, how many of 297 of scikit-learn's digits were
# recognized at best until epochs 1, 3, 9 and 27. ASHA reads no more of a curve. MLPClassifier((units,), learning_rate_init=lr,
# batch_size=64, random_state=7), an epoch by `partial_fit` over the other 1500 digits, in the order of default_rng(0).
UNITS = [8, 16, 32, 64]
RECOGNIZED = {
    0.0001: "5 7 14 49, 33 33 52 143, 31 31 31 169, 30 44 89 238",
    0.0002: "6 7 27 125, 33 41 100 220, 31 31 104 227, 36 60 186 272",
    0.0005: "9 22 102 199, 36 75 198 266, 30 61 208 274, 56 150 261 287",
    0.001: "15 52 156 254, 56 153 250 276, 33 165 261 288, 99 238 278 292",
    0.002: "33 115 221 278, 108 212 268 285, 84 224 279 289, 186 267 289 292",
    0.005: "54 177 273 288, 179 256 279 288, 185 272 291 291, 253 289 291 291",
    0.01: "127 231 280 290, 218 270 286 289, 225 277 288 288, 274 291 291 291",
    0.02: "180 270 285 285, 244 282 288 290, 257 287 289 290, 276 288 293 294",
    0.05: "228 266 282 286, 266 284 285 285, 262 287 294 294, 271 285 289 293",
    0.1: "236 261 275 279, 249 276 289 289, 261 278 292 292, 269 287 288 289",
}
# 24 forks, which begin once all of them are there, print the numbers that they have claimed.
RACE = """
import os, sys
from sdk.sweeps.records import Book
from sdk.sweeps.study import Study

book = Book(sys.argv[1])
go, start = os.pipe()
for _ in range(24):
    if not os.fork():
        os.close(start)
        study = Study(book.store, book.read("one"))
        os.read(go, 1)
        while len(trials := study.trials()) < 12:
            if study.claim(trials, study.journal.position, {}):
                os.write(1, b"%d\\n" % len(trials))
        os._exit(0)
os.close(start)
sys.exit(max(os.wait()[1] for _ in range(24)) and 1)
"""


class KilledError(BaseException):
    """The driver is killed here."""


def known(trials: list[Trial]) -> list[tuple[object, ...]]:
    return [(trial.number, trial.params, trial.state, trial.value) for trial in trials]


def test_every_trial_is_one_run_that_gets_its_parameters_as_arguments(world: World) -> None:
    sweep = world.done(sampler="tpe", parallel=1)
    trials = sweep.trials()
    assert [trial.number for trial in trials] == list(range(8))
    assert world.runs.begun == Counter(trial.run for trial in trials)
    assert [run.plan.job.args for run in world.runs.all.values()] == [trial.params for trial in trials]
    assert sweep.best() == max(trials, key=lambda trial: trial.value)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kills=st.lists(st.integers(1, 60), min_size=1, max_size=5), sampler=st.sampled_from(["random", "tpe"]))
def test_drivers_killed_at_any_write_run_each_trial_once_with_the_same_parameters(world, kills, sampler) -> None:
    parallel = 1 if sampler == "tpe" else 2
    numbers = {"undisturbed": [], "killed": kills}
    found = {}
    for name, writes in numbers.items():
        world.runs, label = PaperTrials(world.clock), f"{name}-{len(Book(world.root).names())}"
        sweep = world.create(label, sampler=sampler, parallel=parallel)
        for left in writes:
            with pytest.MonkeyPatch.context() as patch:
                put, count = PosixStore.put_new, iter(range(left))

                def killed(store, *about, put=put, count=count, **more):
                    if next(count, None) is None:
                        raise KilledError
                    return put(store, *about, **more)

                patch.setattr(PosixStore, "put_new", killed)
                patch.setattr(Heart, "beat", lambda *about, **more: None)
                victim = world.driver(label)
                # The process is gone, and not only its claim too old.
                victim._me = f"{victim._me.split(':')[0]}:1:1"
                try:
                    victim.run()
                except KilledError:
                    continue
        assert world.driver(label).run().state == "DONE"
        found[name] = known(sweep.trials())
        assert Counter(world.runs.begun.values()) == {1: 8}
    assert found["killed"] == found["undisturbed"]


def test_a_grid_keeps_the_order_of_the_parameters(world: World) -> None:
    sweep = world.done(space={"units": [16, 32], "lr": [0.1, 0.2]}, sampler="grid", trials=4)
    points = [tuple(trial.params.items()) for trial in sweep.trials()]
    assert points == [(("units", units), ("lr", lr)) for units in (16, 32) for lr in (0.1, 0.2)]


@pytest.mark.process
def test_24_racing_processes_claim_each_trial_once(world: World) -> None:
    sweep = world.create(trials=12, parallel=12)
    command = [sys.executable, "-c", RACE, world.root]
    race = subprocess.run(command, capture_output=True, text=True, cwd=REPO, check=True)
    assert Counter(race.stdout.split()) == Counter(map(str, range(12)))
    trials = sweep.trials()
    assert len({trial.run for trial in trials}) == 12
    # As one driver proposes them.
    other = world.done("two", trials=12, parallel=12)
    assert [trial.params for trial in trials] == [trial.params for trial in other.trials()]


def test_two_drivers_may_end_a_trial_at_the_same_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = world.create()
    one, other = (Study(Book(world.root).store, sweep.read().record) for _ in range(2))
    assert one.claim([], one.journal.position, {})
    (trial,), append = one.trials(), one.journal.append_logs

    def later(logs: list) -> None:
        monkeypatch.undo()
        other.tell(other.trials()[0], "FAILED")
        append(logs)

    monkeypatch.setattr(one.journal, "append_logs", later)
    one.tell(trial, "PRUNED")
    assert [each.state for each in sweep.trials()] == ["FAILED"]


def test_the_end_of_one_of_two_drivers_is_not_the_end_of_the_other(world: World) -> None:
    sweep, one, other = world.create(), world.driver(), world.driver()
    one._heart = Heart(Book(world.root).store, heartbeat_key(one._record), f"{one._me.split(':')[0]}:1:1", world.clock)
    one.step()
    other.step()
    one.close()
    assert sweep.read().driven
    other.close()
    assert not sweep.read().driven


@pytest.fixture
def far(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The sweeps of this world are as those of a cloud."""
    elsewhere, plan = replace(LOCAL, supervised_here=False), Book.plan
    monkeypatch.setattr(Book, "plan", lambda book, record: replace(plan(book, record), capabilities=elsewhere))
    return world


def test_a_server_drives_sweeps_on_a_cloud_while_no_client_does(far: World, caplog) -> None:
    damaged, sweep = far.create("damaged"), far.create(trials=2, parallel=1)
    Study(Book(far.root).store, damaged.read().record)
    server = Server(far.root, far.clock, sweeps=Drivers(far.root, far.clock, far.runs))
    Path(far.root, f"sweeps/journals/{damaged.read().record.id}/logs/00000000").write_bytes(b"[")
    client = Heart(Book(far.root).store, heartbeat_key(sweep.read().record), "another:1:1", far.clock)
    client.beat()
    server.tick()
    assert not far.runs.all
    client.beat(ended=True)
    for _ in range(3 * far.runs.epochs):
        server.tick()
    assert (sweep.read().state, len(far.runs.begun)) == ("DONE", 2)
    # Once, and not at each look.
    assert caplog.text.count("The sweep damaged: The object 'journals/") == 1


def test_a_client_that_cancels_a_sweep_on_a_cloud_leaves_it_to_the_next_driver(far: World) -> None:
    sweep = far.create()
    sweep.cancel()
    assert (sweep.read().state, sweep.read().driven) == ("CANCELLED", False)


def test_a_client_that_waits_replaces_each_killed_driver_while_the_trials_go_on(world: World, monkeypatch) -> None:
    monkeypatch.setattr(creation, "start", lambda *about: True)
    following = world.create(trials=1).following()
    for _ in range(6):
        next(following)
        driver = world.driver()
        driver.step()
        driver.close()
    with pytest.raises(sdk.PodliftError, match="ends again and again"):
        list(following)


def test_asha_pauses_trials_and_continues_the_promoted_ones_from_their_checkpoints(world: World) -> None:
    world.runs.epochs = 9
    sweep = world.done(pruner="asha", trials=18, parallel=3)
    trials, runs = sweep.trials(), {run.plan.run_id: run for run in world.runs.all.values()}
    assert {trial.state for trial in trials} == {"COMPLETE", "PRUNED"}
    assert Counter(world.runs.begun.values()) == {1: 18}
    promoted = [trial for trial in trials if runs[trial.run].resumes]
    # One of them was continued because others came later and were worse, and paused again at a higher rung.
    assert any(trial.state == "PRUNED" and trial.last >= 3 for trial in promoted)
    assert sum(trial.last for trial in trials) < 18 * 9 / 2
    # The curve of the best one equals the curve of an undisturbed run.
    assert sweep.best().last == 9
    rungs = {f"not among the best third after {epochs}" for epochs in ("1 epoch", "3 epochs", "9 epochs")}
    assert {trial.why for trial in trials if trial.state == "PRUNED"} <= rungs


def test_asha_finds_a_value_within_half_a_point_for_at_most_half_of_the_steps(world: World) -> None:
    def accuracy(args: dict, epoch: int) -> float:
        counts = RECOGNIZED[args["lr"]].split(", ")[UNITS.index(args["units"])].split()
        return int(counts[sum(epoch >= rung for rung in (3, 9, 27))]) / 297

    lost, epochs = [], []
    world.runs.epochs, world.runs.score = 27, lambda plan, epoch: accuracy(plan.job.args, epoch)
    for seed in range(5):
        name, space = f"seed-{seed}", {"lr": list(RECOGNIZED), "units": UNITS}
        sweep = world.done(name, space=space, trials=20, pruner="asha", seed=seed)
        trials = sweep.trials()
        # The random sampler proposes the same trials to a sweep without a pruner.
        lost.append(max(accuracy(trial.params, 27) for trial in trials) - sweep.best().value)
        epochs.append(sum(trial.last for trial in trials))
    assert statistics.median(lost) <= 0.005, lost
    assert max(epochs) <= 20 * 27 / 2, epochs


def test_the_median_pruner_cancels_a_trial_gracefully_and_does_not_continue_it(world: World) -> None:
    sweep = world.done(pruner="median", trials=12, parallel=1)
    pruned = [trial for trial in sweep.trials() if trial.state == "PRUNED"]
    assert pruned and all(trial.why.startswith("below the median after") for trial in pruned)
    states = {run.plan.run_id: (run.state, run.resumes) for run in world.runs.all.values()}
    assert {states[trial.run] for trial in pruned} == {(State.CANCELLED, 0)}


@pytest.mark.parametrize(
    ("state", "reason"),
    [(State.LOST, Reason.SUPERVISOR_LOST), (State.FAILED, Reason.PREEMPTED), (State.CHECKPOINTED, Reason.CHECKPOINTED)],
)
def test_a_run_that_was_taken_away_is_resumed_with_the_same_parameters(world, state: State, reason: Reason) -> None:
    world.runs.fails = lambda run: Status(state=state, reason=reason) if run.epochs == 4 and not run.resumes else None
    sweep = world.done(trials=3)
    assert {run.resumes for run in world.runs.all.values()} == {1}
    assert {trial.state for trial in sweep.trials()} == {"COMPLETE"}


def test_a_cancelled_sweep_ends_the_run_of_a_driver_that_died_before_its_note(world: World, monkeypatch) -> None:
    sweep = world.create(trials=3, parallel=1)
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(Study, "note", lambda *about, **more: (_ for _ in ()).throw(KilledError))
        world.driver().run()
    assert not sweep.trials()[0].notes.get("submitted")
    sweep.cancel()
    assert world.driver().run().state == "CANCELLED"
    assert [run.state for run in world.runs.all.values()] == [State.CANCELLED]


def test_a_trial_of_a_driver_that_died_before_the_cancel_request_is_stopped(world: World, monkeypatch) -> None:
    sweep = world.create(trials=6, parallel=1, pruner="asha")
    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(world.runs, "cancel", lambda url: (_ for _ in ()).throw(KilledError))
        world.driver().run()
    (paused,) = [trial for trial in sweep.trials() if trial.state == "PAUSED"]
    driver = world.driver()
    for _ in range(2):
        driver.step()
    assert sweep.trials()[paused.number].last < 3


@pytest.mark.parametrize("verb", ["status", "cancel", "resume"])
def test_a_run_that_was_removed_by_hand_is_a_failed_trial(world: World, monkeypatch, verb: str) -> None:
    sweep, real, removed = world.create(trials=8, parallel=2, pruner="asha"), getattr(world.runs, verb), set()

    def missing(url: str) -> Status | None:
        if url in removed or not removed:
            removed.add(url)
            raise sdk.RunNotFoundError("no such run")
        return real(url)

    monkeypatch.setattr(world.runs, verb, missing)
    assert world.driver().run().state == "DONE"
    assert [trial.why for trial in sweep.trials() if trial.state == "FAILED"] == ["its run was removed"]


def test_a_failing_trial_is_one_of_the_results(world: World) -> None:
    fails = Status(state=State.FAILED, reason=Reason.USER_ERROR)
    world.runs.fails = lambda run: fails if run.plan.run_id.startswith("one-001") and run.epochs == 2 else None
    sweep = world.done(trials=4)
    assert [trial.state for trial in sweep.trials()] == ["COMPLETE", "FAILED", "COMPLETE", "COMPLETE"]


def test_a_metric_that_is_never_reported_ends_the_sweep_after_the_first_trial(world: World) -> None:
    world.runs.metric = "scores"
    sweep = world.create(trials=8, parallel=1)
    end = world.driver().run()
    assert (end.state, len(sweep.trials())) == ("FAILED", 1)
    never = "The trial 0 has no value: the program has never reported the metric 'score'. Did you mean 'scores'?"
    assert end.why.startswith(never)


@pytest.mark.parametrize("pruner", ["none", "asha", "median"])
def test_a_trial_with_nan_has_no_value_and_does_not_end_the_sweep(world: World, pruner: str) -> None:
    metrics = world.runs.metrics
    diverged = lambda url: [{**record, "metrics": {"score": None}} for record in metrics(url)]  # noqa: E731
    world.runs.metrics = lambda url: diverged(url) if "one-000" in url else metrics(url)
    sweep = world.done(trials=6, parallel=1, pruner=pruner)
    first, *others = sweep.trials()
    ended = ("PRUNED", "not among the best third after 1 epoch")
    ended = ended if pruner == "asha" else ("FAILED", "all values of 'score' are NaN or infinite")
    assert (first.state, first.why, first.value) == (*ended, None)
    assert sweep.best() in others


def test_a_program_that_fails_at_once_ends_the_sweep_after_the_first_trial(world: World) -> None:
    world.runs.fails = lambda run: Status(state=State.FAILED, reason=Reason.USER_ERROR)
    world.runs.metric = "other"
    sweep = world.create(trials=8, parallel=1)
    assert world.driver().run().state == "FAILED"
    assert len(sweep.trials()) == 1


def test_a_cancelled_sweep_cancels_its_runs_and_goes_on_when_it_is_resumed(world: World) -> None:
    sweep = world.create(trials=4)
    driver = world.driver()
    for _ in range(3):
        driver.step()
    sweep.cancel()
    assert driver.run().state == "CANCELLED"
    assert {run.state for run in world.runs.all.values()} == {State.CANCELLED}
    world.clock.time += 10
    sweep.resume()
    assert world.driver().run().state == "DONE"
    assert [trial.state for trial in sweep.trials()] == ["COMPLETE"] * 4
    assert Counter(world.runs.begun.values()) == {1: 4}


def test_a_sweep_continues_with_more_trials_but_with_no_other_space(world: World) -> None:
    world.done(trials=2)
    with pytest.raises(sdk.InputError) as raised:
        world.create(trials=2, space={**SPACE, "lr": "log:1e-4..1.0"})
    changed = "The sweep 'one' exists: the space has another lr: it was log:0.0001..0.1, and is log:0.0001..1.0 now. "
    following = "Next: another --name, or podlift sweep resume one, which continues it as it was."
    assert raised.value.problems == (changed + following,)
    sweep = world.done(trials=3, parallel=1)
    assert len(sweep.trials()) == 3


def test_a_sweep_continues_with_no_other_program_data_or_settings(world: World, tmp_path: Path) -> None:
    world.create(trials=2)
    world.program = tmp_path / "other.py"
    world.program.write_text("print(2)\n")
    data = str(world.program)
    world.given = {"env": {"PRECISION": "half"}, "inputs": {"data": data}}
    world.given |= {"accelerator": "l4", "local_cluster": "workers"}
    with pytest.raises(sdk.InputError) as raised:
        world.create(trials=3)
    found = [text.removeprefix("The sweep 'one' exists: ").partition(". Next:")[0] for text in raised.value.problems]
    assert found == [
        "the code is another one (other.py, train.py)",
        "the program was 'train.py', and is 'other.py' now",
        f"inputs.data was not there, and is {data!r} now",
        "env.PRECISION was not there, and is 'half' now",
        "accelerator was 'cpu', and is 'l4' now",
        "local_cluster was 'chief', and is 'workers' now",
    ]


@pytest.mark.parametrize(("first", "second"), [({"layers": (8, 4)}, {"layers": (8, 4)}), (None, {}), ([], None)])
def test_a_sweep_continues_with_equal_arguments_in_another_form(world: World, first: object, second: object) -> None:
    for args in (first, second):
        world.given = {"args": args}
        assert world.create().name == "one"


def test_a_sweep_that_continues_keeps_its_limit_on_the_cost_until_another_is_given(world: World) -> None:
    kept = []
    for limits in ({"max_cost_usd": 6.0}, {}, {"max_cost_usd": 9.0}):
        world.given = limits
        kept.append(world.create().read().record.spec.max_cost_usd)
    assert kept == [6.0, 6.0, 9.0]


def test_no_driver_starts_without_the_variables_of_its_runs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "x")
    world.given = {"env": {"TOKEN": sdk.FromCaller()}}
    sweep = world.create()
    view = sweep.read()
    monkeypatch.delenv("TOKEN")
    with pytest.raises(sdk.InputError, match="TOKEN is to be copied from here, but is not set"):
        start(Book(world.root), view.record, view.plan, world.clock)
    elsewhere = replace(view.plan, capabilities=replace(LOCAL, supervised_here=False))
    monkeypatch.setattr(Book, "plan", lambda book, record: elsewhere)
    with pytest.raises(sdk.InputError, match="TOKEN is to be copied from here, but is not set"):
        sweep.wait()
    assert (sweep.read().state, sweep.trials()) == ("STOPPED", [])


def test_a_trial_runs_with_this_python_if_that_of_the_plan_is_not_for_this_user(world: World, monkeypatch) -> None:
    (closed := Path(world.root + "-python")).write_bytes(b"")
    plan = Book.plan
    made = lambda plan: replace(plan, facts=replace(plan.facts, executable=str(closed)))  # noqa: E731
    monkeypatch.setattr(Book, "plan", lambda book, record: made(plan(book, record)))
    world.create()
    world.driver().step()
    assert {run.plan.facts.executable for run in world.runs.all.values()} == {sys.executable}


def test_an_outage_of_the_store_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create(trials=2)
    driver, status, outages = world.driver(), world.runs.status, iter([True, True])

    def failing(url: str) -> Status:
        if next(outages, False):
            raise StoreUnavailableError("no answer")
        return status(url)

    monkeypatch.setattr(world.runs, "status", failing)
    assert driver.run().state == "DONE"


def test_a_snapshot_every_hundred_objects_begins_the_reading(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PosixStore(world.root)
    journal = StoreJournal(store, "journals/x")
    for number in range(2 * SNAPSHOT_EVERY + 5):
        journal.append_logs([{"number": number}])
    read, get = [], PosixStore.get
    monkeypatch.setattr(PosixStore, "get", lambda store, key, **more: read.append(key) or get(store, key, **more))
    logs = list(StoreJournal(store, "journals/x").read_logs(0))
    assert [log["number"] for log in logs] == list(range(2 * SNAPSHOT_EVERY + 5))
    # One snapshot, five objects, and the look for a sixth.
    assert len(read) == 7
    Path(world.root, "journals/x/snapshots", f"{2 * SNAPSHOT_EVERY:08d}").write_bytes(b"[")
    assert list(StoreJournal(store, "journals/x").read_logs(0)) == logs
    # A listing may still name a snapshot that is not there.
    listed, gone = PosixStore.list, Stat(key="journals/x/snapshots/00000300", size=1, crc32c=0, generation="1")
    late = lambda store, prefix: [*listed(store, prefix), *([gone] if "snapshots" in prefix else [])]  # noqa: E731
    monkeypatch.setattr(PosixStore, "list", late)
    assert list(StoreJournal(store, "journals/x").read_logs(0)) == logs


def test_the_new_points_of_a_curve_are_one_object(world: World) -> None:
    sweep = world.create()
    one, other = (Study(Book(world.root).store, sweep.read().record) for _ in range(2))
    assert one.claim([], one.journal.position, {})
    (trial,), before = one.trials(), one.journal.position
    curve = {step: step / 8 for step in range(1, 900)}
    one.report(trial, curve)
    assert one.journal.position == before + 1
    assert [each.trials()[0].curve for each in (one, other)] == [curve, curve]
    other.tell(other.trials()[0], "COMPLETE")
    one.report(trial, {1000: 1.0, 1001: 1.0, 1002: 1.0})
    assert one.trials()[0].curve == curve


def test_writers_that_meet_take_the_next_number_and_a_missing_one_is_damage(world: World, monkeypatch) -> None:
    journals = [StoreJournal(PosixStore(world.root), "journals/x") for _ in range(3)]
    for number in range(9):
        journals[number % 3].append_logs([{"number": number}])
    listed = PosixStore.list
    late = lambda store, prefix: [stat for stat in listed(store, prefix) if stat.key[-1] != "4"]  # noqa: E731
    monkeypatch.setattr(PosixStore, "list", late)
    assert [log["number"] for log in StoreJournal(PosixStore(world.root), "journals/x").read_logs(0)] == list(range(9))
    folder = Path(world.root, "journals/x/logs")
    # Objects of somebody else: the second one has a hundred million numbers before it.
    for name in ("x0000011", "99999999"):
        (folder / name).write_text("[]")
    with pytest.raises(CorruptObjectError, match="logs/00000009"):
        StoreJournal(PosixStore(world.root), "journals/x").read_logs(0)
    (folder / "00000004").unlink()
    with pytest.raises(CorruptObjectError, match="logs/00000004"):
        StoreJournal(PosixStore(world.root), "journals/x").read_logs(0)


def test_the_written_journal_is_a_study_of_optuna(world: World, tmp_path) -> None:
    sweep = world.done(trials=3)
    sweep.write_journal(tmp_path / "sweep.log")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "sweep.log")))
    study = optuna.load_study(study_name="one", storage=storage)
    assert study.best_params == sweep.best().params
    assert [len(trial.intermediate_values) for trial in study.trials] == [9, 9, 9]


@pytest.mark.parametrize("content", ['{"op_code": 99}', '{"op_code": 8}'])
def test_a_part_that_optuna_does_not_know_stays_damage_and_ends_no_server(far: World, content: str, caplog) -> None:
    sweep, reader = far.create(), Reader(far.root, far.clock)
    journal = Study(Book(far.root).store, sweep.read().record).journal
    assert reader.one("one").damage is None
    journal.append_logs([json.loads(content)])
    assert all(isinstance(reader.one("one").damage, CorruptRunError) for _ in range(2))
    server = Server(far.root, far.clock, sweeps=Drivers(far.root, far.clock, far.runs))
    for _ in range(2):
        server.tick()
    assert caplog.text.count("The sweep one: A record of the sweep is damaged") == 1


@pytest.mark.parametrize("content", [b'{"half', None])
@pytest.mark.parametrize("part", ["specs/two.json", "journals/*/logs/00000003", "plans/two/*"])
def test_a_damaged_sweep_is_named_with_its_object_and_hides_no_other(world, part, content, capsys) -> None:
    world.create("one", trials=2)
    sweep = world.done("two", trials=2)
    (path,) = Path(world.root, "sweeps").glob(part.replace("*/logs", f"{sweep.read().record.id}/logs"))
    path.unlink() if content is None else path.write_bytes(content)
    if path.name == "two.json" and content is None:
        return  # without a specification, there is no sweep
    views, (problem,) = handle.listed(world.root)
    readable = part.startswith("journals")
    assert [view.record.spec.name for view in views] == ["one", "two"][: 1 + readable]
    assert problem.startswith(f"The sweep two is {'damaged' if readable else 'not listed'}: ") and path.name in problem
    with pytest.raises(sdk.PodliftError, match=path.name) as raised:
        sdk.Sweep("two", root=world.root).best()
    assert app.run(["sweep", "status", "two", "--root", world.root]) == raised.value.exit_code
    shown = capsys.readouterr()
    assert path.name in shown.err
    assert (world.runs.all.popitem()[1].plan.run_id in shown.out) == readable
    export = ["export", "html", "two", "--root", world.root, "--output", str(Path(world.root, "two.html"))]
    assert app.run(export) == raised.value.exit_code
    assert path.name in capsys.readouterr().err


def test_reading_a_sweep_that_no_driver_has_begun_writes_nothing(world: World) -> None:
    sweep = world.create()
    assert (sweep.read().state, sweep.trials(), sweep.best()) == ("STOPPED", [], None)
    assert [view.state for view in handle.listed(world.root)[0]] == ["STOPPED"]
    assert not Path(world.root, "sweeps/journals").exists()


@pytest.fixture
def priced(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A trial may cost 2 USD, and costs that, and the same again when it is resumed."""
    spending, status = driving.spending, world.runs.status
    over = lambda plan, limit, spent, **more: "budget: spent" * (spent + 2 > limit)  # noqa: E731
    costs = lambda url: replace(status(url), spent_usd=2.0 * (1 + world.runs.all[url].resumes))  # noqa: E731
    monkeypatch.setattr(spending, "over_limit", over)
    monkeypatch.setattr(spending, "most_usd", lambda plan: 2.0)
    monkeypatch.setattr(world.runs, "status", costs)
    return world


def test_no_trial_starts_that_could_break_the_limit_on_the_cost(priced: World) -> None:
    priced.given = {"max_cost_usd": 6.0}
    sweep = priced.create(trials=8)
    assert priced.driver().run().why == "budget: spent"
    assert len(sweep.trials()) == 3


def test_trials_that_asha_continues_cost_no_more_than_the_limit(priced: World) -> None:
    priced.given = {"max_cost_usd": 9.0}
    sweep = priced.done(trials=4, pruner="asha")
    assert len(sweep.trials()) == 4
    assert sum(1 + run.resumes for run in priced.runs.all.values()) == 4
