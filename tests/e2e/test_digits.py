"""The job that a new user sees first."""

from __future__ import annotations

import pytest
from support import REPO

import sdk

pytestmark = [pytest.mark.tensorflow, pytest.mark.full]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> sdk.Run:
    root = tmp_path_factory.mktemp("digits")
    run = sdk.submit(REPO / "jobs" / "digits" / "train.py", workers=2, root=root)
    run.wait(300)
    return run


def test_digits_trains_on_two_workers_with_unchanged_fit(trained: sdk.Run) -> None:
    result = trained.result()
    assert result.metrics["val_accuracy"] is not None
    assert result.metrics["val_accuracy"] >= 0.96
    assert len(trained.metrics()) == 12


def test_the_model_of_the_chief_can_be_loaded(trained: sdk.Run) -> None:
    import keras

    assert keras.models.load_model(f"{trained.result().model_dir}/digits.keras").count_params() == 38_282
