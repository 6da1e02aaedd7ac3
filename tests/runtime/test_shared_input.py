"""Data that several tasks share: each example is trained on once, and the log says how the data was divided."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, PROGRAMS, needs, printed

import sdk
from sdk.testing import tasks

np = pytest.importorskip("numpy")

pytestmark = [pytest.mark.full, pytest.mark.tensorflow]
needs("tensorflow")

EXAMPLES, BATCH = 24, 8
# Each worker has one batch, which it takes again and again. Prints the different ones.
PER_WORKER = """
import json

import tensorflow as tf

import sdk

coordinator = tf.distribute.coordinator.ClusterCoordinator(sdk.context().strategy)


def data():
    return tf.data.Dataset.range(1000).shuffle(1000, reshuffle_each_iteration=False).take(5).batch(5).repeat()


@tf.function
def step(batches):
    return next(batches)


batches, found = iter(coordinator.create_per_worker_dataset(data)), set()
for _ in range(100):
    steps = [coordinator.schedule(step, args=(batches,)) for _ in range(20)]
    found |= {tuple(map(int, each)) for each in coordinator.fetch(steps)}
    if len(found) > 1:
        break
print(json.dumps(list(found)))
"""


@pytest.fixture(scope="module", params=[False, True], ids=["Keras 3", "tf_keras"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], str, sdk.Run]:
    """What both tasks have seen, and the first one's log."""
    env = {"TF_USE_LEGACY_KERAS": "1"} if request.param else {}
    root = tmp_path_factory.mktemp("shared")
    run = sdk.submit(PROGRAMS / "shared_input.py", workers=2, root=root, env=env)
    assert run.wait(timeout_s=LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    found = [printed(run, task) for task in run.plan.tasks]
    return found, "\n".join(line.text for line in run.logs(task="chief-0")), run


def all_of(parts: list[list[list[int]]]) -> list[int]:
    return sorted(int(example) for batches in parts for batch in batches for example in batch)


def test_a_file_for_each_worker_is_not_needed_and_the_log_names_the_alternative(shared: Any) -> None:
    (first, second), log, _ = shared
    assert all_of([first["one file"], second["one file"]]) == list(range(EXAMPLES))
    # A step has the examples of one device's batch, half of them in each task.
    for number, (one, other) in enumerate(zip(first["one file"], second["one file"], strict=True)):
        assert len(one) == len(other) == BATCH // 2
        assert sorted(one + other) == list(range(number * BATCH, (number + 1) * BATCH))
    assert log.count("1 file for 2 workers: each worker reads all of the data") == 1


@pytest.mark.parametrize("case", ["four files", "three files", "filtered names"])
def test_enough_files_are_divided_between_the_workers(shared: Any, case: str) -> None:
    (first, second), log, _ = shared
    assert all_of([first[case], second[case]]) == list(range(EXAMPLES))
    count = 3 if case == "three files" else 4
    owned = [{example % count for batch in task[case] for example in batch} for task in (first, second)]
    assert not owned[0] & owned[1], "both have read a file"
    assert f"{count} files for 2 workers: each worker reads its own (auto-shard policy FILE)" in log


def test_files_that_do_not_divide_evenly_are_reported(shared: Any) -> None:
    _, log, _ = shared
    assert "Next: a multiple of 2 files" in log
    assert log.count("do not divide evenly") == 1, "four files do"


def test_the_policy_file_is_refused_for_fewer_files_than_workers_and_for_none(shared: Any) -> None:
    for task in shared[0]:
        few, none = task["refused"]
        assert "Received: 1 file for 2 workers." in few and "AutoShardPolicy.DATA" in few and "--workers 1" in few
        assert "Received: one that does not." in none


def test_unseeded_shuffles_are_shared_without_repetitions_and_differ_between_epochs(shared: Any) -> None:
    (first, second), _, _ = shared
    epochs = list(zip(first["shuffled"], second["shuffled"], strict=True))
    assert [all_of(list(parts)) for parts in epochs] == [list(range(EXAMPLES))] * 3
    assert epochs[0] != epochs[2], "another line has another order"


def test_data_that_the_tasks_do_not_divide_and_shuffle_alike_is_in_the_log_once(shared: Any) -> None:
    (first, second), log, _ = shared
    ordered, divided, shuffled, made = zip(first["undivided"], second["undivided"], strict=True)
    assert all_of(list(divided)) == list(range(EXAMPLES))
    assert all(one == other for one, other in (ordered, shuffled, made)), "each task has all of it"
    # In a defined order it is the program's request; a task that shards has divided it.
    assert log.count("each of 2 workers reads all of this data") == 2
    _, _, after = log.partition("The next data is not divided.")
    assert after.count("(AutoShardPolicy.OFF), and shuffles it without a seed") == 1
    assert log.count("(AutoShardPolicy.OFF), and shuffles it without a seed") == 1
    assert log.count("(distribute_datasets_from_function), and shuffles it without a seed") == 1


def test_data_is_divided_inside_a_function_of_tensorflow_too(shared: Any) -> None:
    assert [sum(counts) for counts in zip(*(task["graph"] for task in shared[0]), strict=True)] == [EXAMPLES] * 2


def test_a_misspelt_argument_of_fit_gets_the_words_of_keras(shared: Any) -> None:
    for task in shared[0]:
        assert task["misspelt"].endswith("fit() got an unexpected keyword argument 'epoch'")


def test_workers_of_parameter_servers_shuffle_the_same_data_differently(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PER_WORKER)
    run = sdk.submit(tmp_path / "train.py", workers=3, ps=1, root=tmp_path / "runs")
    assert run.wait(timeout_s=LIMIT_S).state is sdk.State.SUCCEEDED, run.why()
    assert len(printed(run, "chief-0")) == 2, "both train on the same examples"


@pytest.mark.parametrize("batch", [10, 5])
def test_a_last_batch_and_a_batch_that_does_not_divide_count_by_their_examples(shared: Any, batch: int) -> None:
    (first, second), _, _ = shared
    if batch == 5 and shared[2].plan.job.env:
        pytest.skip("tf_keras gives each replica the same weight")
    expected = descent(batch)
    np.testing.assert_allclose(first["losses"][str(batch)], expected, rtol=1e-5)
    np.testing.assert_allclose(second["losses"][str(batch)], expected, rtol=1e-5)


def descent(batch: int) -> list[float]:
    """Return the losses of the same training on one device."""
    x = np.arange(EXAMPLES) / EXAMPLES
    y, weight, bias, found = 3 * x - 1, 1.0, 0.0, []
    for _ in range(3):
        total = 0.0
        for begin in range(0, EXAMPLES, batch):
            part, wanted = x[begin : begin + batch], y[begin : begin + batch]
            error = weight * part + bias - wanted
            total += float((error**2).sum())
            weight, bias = weight - 0.2 * float((error * part).mean()), bias - 0.2 * float(error.mean())
        found.append(total / EXAMPLES)
    return found


def test_each_task_knows_its_share_of_data_that_it_divides_itself(shared: Any) -> None:
    assert [task["shard"] for task in shared[0]] == [[0, 2], [1, 2]]


@pytest.mark.parametrize(("style", "data", "workers"), [("loop", "shuffled", 2), ("fit", "generated", 1)])
def test_after_a_kill_each_epoch_has_the_examples_that_it_would_have_had(
    tmp_path: Path, style: str, data: str, workers: int
) -> None:
    run, steps = killed(tmp_path, style, data, workers)
    latest = {step: attempts[max(attempts)] for step, attempts in steps.items()}
    for epoch in range(3):
        found = [example for step in range(epoch * 4, epoch * 4 + 4) for example in latest[step]]
        assert sorted(found) == list(range(EXAMPLES)), f"epoch {epoch}"
    twice = [attempts for attempts in steps.values() if len(attempts) == 2]
    # The kill may have cut the last one.
    assert twice and all(set(attempts[1]) <= set(attempts[2]) for attempts in twice)
    assert not any("not exact" in line.text for line in run.logs())


def test_inexact_numbers_from_data_of_unknown_size_are_in_the_log(tmp_path: Path) -> None:
    run, _ = killed(tmp_path, "fit", "unknown", 1)
    assert any("not exact" in line.text and "assert_cardinality" in line.text for line in run.logs())


def killed(root: Path, style: str, data: str, workers: int) -> tuple[sdk.Run, dict[int, dict[int, list[int]]]]:
    """Return a run of which a task was killed, and the examples of each step by attempt."""
    job = sdk.Job(
        str(PROGRAMS / "resumed_input.py"),
        args=[style, data],
        resources=sdk.Resources(workers=workers),
        checkpoints=sdk.Checkpoints(every_steps=3),
        retry=sdk.Retry(infrastructure=1),
        limits=sdk.Limits(timeout_s=LIMIT_S),
    )
    run = sdk.submit(job, root=root)
    tasks.wait_for_step(run, 7)
    tasks.kill(run, run.plan.tasks[-1])
    status = run.wait(timeout_s=LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2) and status.continued_step, run.why()
    steps: dict[int, dict[int, list[int]]] = {}
    for attempt in (1, 2):
        for line in run.logs(attempt=attempt):
            if line.text.startswith("{"):
                told = json.loads(line.text)
                steps.setdefault(told["step"], {}).setdefault(attempt, []).extend(told["examples"])
    return run, steps
