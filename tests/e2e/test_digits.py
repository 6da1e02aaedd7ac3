"""The job that a new user sees first."""

from __future__ import annotations

import pytest
from support import REPO

import sdk

# Of its twelve.
EPOCHS = 4


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> sdk.Run:
    root = tmp_path_factory.mktemp("digits")
    run = sdk.submit(REPO / "jobs" / "digits" / "train.py", args=["--epochs", EPOCHS], workers=2, root=root)
    run.wait(300)
    return run


def test_digits_trains_on_two_workers_with_unchanged_fit(trained: sdk.Run) -> None:
    result = trained.result()
    assert result.metrics["val_accuracy"] is not None
    assert result.metrics["val_accuracy"] >= 0.9
    assert len(trained.metrics()) == EPOCHS


def test_both_workers_used_the_multi_worker_strategy_and_the_names_of_the_cluster(trained: sdk.Run) -> None:
    for task in ("chief-0", "worker-0"):
        log = "\n".join(line.text for line in trained.logs(task=task))
        assert "Started server with target" in log
        assert "keras-multi-worker" in log, "the log names the cure"


def test_the_model_of_the_chief_can_be_loaded(trained: sdk.Run) -> None:
    import keras

    assert keras.models.load_model(f"{trained.result().model_dir}/digits.keras").count_params() == 38_282


def test_timings_say_when_the_first_step_was_over(trained: sdk.Run) -> None:
    timings = trained.status().timings
    assert 0 < timings["started"] < timings["entry"] < timings["first_step"] < timings["finished"]
