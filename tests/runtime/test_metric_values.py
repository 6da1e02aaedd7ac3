"""Metrics that are no single number are reported as several, and never end a training."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import LIMIT_S, PROGRAMS, needs

import sdk
from sdk.records.metric_file import read_metrics
from sdk.runtime.reporting import Reporter, numbers

np = pytest.importorskip("numpy")
needs("tensorflow")

# What `Adds` in the program puts into the logs, as it is reported.
ADDED = {"nan": None, "flag": 1.0, "integer": 7.0, "of_numpy": 0.5, "one": 4.0, "array/0": 1.5, "array/1": 2.5}
ADDED |= {
    "nested/low/0": 1.0,
    "nested/low/1": 2.0,
    "nested/high": 3.0,
    "tensor/0": 1.0,
    "tensor/1": 2.0,
    "tensor/2": 3.0,
}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.array([0.25, 0.5]), {"m/0": 0.25, "m/1": 0.5}),
        (np.eye(2, dtype=np.int8), {"m/0/0": 1.0, "m/0/1": 0.0, "m/1/0": 0.0, "m/1/1": 1.0}),
        ({"car": 0.5, "dog": [1, True]}, {"m/car": 0.5, "m/dog/0": 1.0, "m/dog/1": 1.0}),
        (np.arange(16), {f"m/{index}": float(index) for index in range(16)}),
        (np.array(3), {"m": 3.0}),
        ([np.bool_(True), np.float64(0.25), np.float16(0.5)], {"m/0": 1.0, "m/1": 0.25, "m/2": 0.5}),
        (np.bool_(False), {"m": 0.0}),
        (np.array([[2.5]]), {"m": 2.5}),
        (float("inf"), {"m": float("inf")}),
        ("0.5", {"m": 0.5}),
    ],
)
def test_each_number_of_a_metric_has_a_name(value: Any, found: dict[str, float]) -> None:
    assert numbers({"m": value}, strict=True) == (found, {})


@pytest.mark.parametrize(
    ("value", "name", "reason"),
    [
        (np.zeros(17), "m", "it has more than 16 values"),
        ([np.zeros(10), np.zeros(10)], "m", "it has more than 16 values"),
        ([], "m", "it has no values"),
        ("warm-up", "m", "its type is str"),
        ([1, None], "m/1", "it is None"),
        (1 + 2j, "m", "its type is complex"),
    ],
)
def test_every_omitted_value_has_a_reason(value: Any, name: str, reason: str) -> None:
    assert numbers({"m": value, "loss": 1})[1] == {name: reason}
    assert numbers({"m": value, "loss": 1})[0]["loss"] == 1.0


def test_a_program_that_reports_text_is_told_so_at_once() -> None:
    with pytest.raises(TypeError, match=r"must be a number. Received: phase/0='warm-up'"):
        Reporter(None).report({"phase": ["warm-up"]})
    reported = Reporter(None).report({"per_class": np.array([1, 2]), "matrix": np.eye(9)})
    assert reported == {"per_class/0": 1, "per_class/1": 2}


def test_a_step_may_be_a_number_of_numpy_or_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (np.int64(1), np.array(2), SimpleNamespace(numpy=lambda: np.int64(3))):
        Reporter(str(path)).report({"loss": np.float32(0.5)}, step=step)
    found = [(record["step"], record["metrics"]) for record in read_metrics(str(path))]
    assert found == [(step, {"loss": 0.5}) for step in (1, 2, 3)]


def trained_with_tensorflow(test: Any) -> Any:
    return pytest.mark.full(pytest.mark.tensorflow(test))


@pytest.fixture(scope="module", params=[[1], [2], [1, "legacy"]], ids=["one task", "two tasks", "tf_keras"])
def interrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> sdk.Run:
    """A run of two fits, killed in the second one and continued."""
    workers, *arguments = request.param
    job = sdk.Job(
        str(PROGRAMS / "vector_metrics.py"),
        args=["stops", *arguments],
        resources=sdk.Resources(workers=workers),
        checkpoints=sdk.Checkpoints(every_steps=1, best="max:f1_score/0"),
        retry=sdk.Retry(user_errors=0, infrastructure=2, preemptions=None),
        limits=sdk.Limits(timeout_s=LIMIT_S),
    )
    run = sdk.submit(job, root=tmp_path_factory.mktemp("vectors"))
    status = run.wait(timeout_s=LIMIT_S)
    assert (status.state, status.attempts) == (sdk.State.SUCCEEDED, 2), run.why()
    return run


@trained_with_tensorflow
def test_a_metric_that_is_a_vector_is_reported_by_its_classes(interrupted: sdk.Run) -> None:
    shown = interrupted.metrics()
    assert [(record["attempt"], record["epoch"]) for record in shown][:2] == [(1, 1), (1, 2)]
    for found in shown:
        assert [found[f"seen/{index}"] for index in range(3)] == [21, 11, 16]
        assert [found[f"val_seen/{index}"] for index in range(3)] == [7, 7, 6]
        assert all(0 < found[f"{name}/{index}"] < 1 for name in ("f1_score", "val_f1_score") for index in range(3))
        assert {name: found[name] for name in ADDED} == ADDED
        assert not {name for name in found if name.startswith(("long", "text", "nothing", "object"))}


@trained_with_tensorflow
def test_an_unreported_value_is_logged_once_in_each_attempt(interrupted: sdk.Run) -> None:
    lines = [line.text for line in interrupted.logs(task="chief-0")]
    for name in ("long", "val_long", "text", "nothing", "object"):
        assert sum(f"the metric {name} is not reported" in line for line in lines) == 2, name


@trained_with_tensorflow
def test_a_resumed_program_finds_the_history_that_it_had(interrupted: sdk.Run) -> None:
    folder = Path(interrupted.plan.paths.payload(1)).parents[2]
    (before, kinds), (after, restored) = (json.loads((folder / f"fit-0-{n}.json").read_text()) for n in (1, 2))
    np.testing.assert_equal(after, before)  # NaN included
    unlike = {name for name in kinds if kinds[name] != restored[name]}
    # An object as its text, a number as a float, a tensor as an array.
    assert unlike <= {"object", "of_numpy", "tensor"}
    for history in (after, json.loads((folder / "fit-1-2.json").read_text())[0]):
        assert np.shape(history["f1_score"])[1:] == (3,) and np.shape(history["long"])[1:] == (40,)


@trained_with_tensorflow
def test_a_checkpoint_is_chosen_by_one_class_and_its_weights_get_into_a_model(interrupted: sdk.Run) -> None:
    best = interrupted.checkpoints(best="max:f1_score/0")
    assert best and all("f1_score/0" in each.metrics for each in best)
    import keras
    import tf_keras

    kind = tf_keras if "legacy" in interrupted.plan.job.args else keras
    model = kind.Sequential([kind.layers.Dense(3, activation="softmax")])
    model.build((None, 4))
    assert interrupted.load_weights(model, best[0]).step == best[0].step
    assert interrupted.load_weights(model).step == interrupted.checkpoints()[-1].step
    kept = np.load(Path(interrupted.plan.paths.payload(1)).parents[2] / "weights.npz")
    for weight, name in zip(model.get_weights(), kept.files, strict=True):
        np.testing.assert_array_equal(weight, kept[name])
    with pytest.raises(sdk.InputError, match="no such checkpoint"):
        interrupted.load_weights(model, 9999)
