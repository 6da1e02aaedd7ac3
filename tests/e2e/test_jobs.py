"""The programs in `jobs/`: each learns as its first lines and the README promise."""

from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path

import pytest
from support import REPO, full_only, needs

import sdk

pytestmark = pytest.mark.tensorflow

needs("tensorflow", "sklearn")

JOBS = REPO / "jobs"
FEW_STEPS = {
    "digits_loop": ["--epochs", "1"],
    "ae_images": ["--epochs", "1"],
    "char_lm": shlex.split(
        "--steps 2 --each 1 --characters 2000 --length 8 --width 8 --blocks 1 --heads 1 --per-replica 2"
    ),
}


@pytest.mark.xdist_group("tensorflow")
@pytest.mark.parametrize("name", ["digits_loop", full_only("ae_images"), full_only("char_lm")])
def test_a_job_runs_by_hand_too_and_leaves_a_model(name: str, tmp_path: Path, monkeypatch, capfd) -> None:
    import keras

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", *FEW_STEPS[name]])
    runpy.run_path(str(JOBS / name / "train.py"), run_name="__main__")
    made = sorted((tmp_path / "model").glob("*.keras"))
    # The layer of char_lm that has no registered name is of the program.
    assert made and (name == "char_lm" or all(keras.models.load_model(each).count_params() for each in made))


def trained(name: str, root: Path, **settings: object) -> tuple[sdk.Run, dict[str, float]]:
    run = sdk.submit(JOBS / name / "train.py", root=root, **settings)  # type: ignore[arg-type]
    return run, {metric: value for metric, value in run.result(900).metrics.items() if value is not None}


@pytest.mark.full
def test_digits_trains_on_two_workers_with_unchanged_fit_and_leaves_a_model(tmp_path: Path) -> None:
    import keras

    run, metrics = trained("digits", tmp_path, workers=2)
    assert metrics["val_accuracy"] >= 0.96
    assert len(run.metrics()) == 12
    assert keras.models.load_model(f"{run.result().model_dir}/digits.keras").count_params() == 38_282


@pytest.mark.full
def test_digits_loop_recognizes_digits_on_two_workers(tmp_path: Path) -> None:
    run, metrics = trained("digits_loop", tmp_path, workers=2)
    assert metrics["val_accuracy"] >= 0.96
    saved = [entry.metrics["val_accuracy"] for entry in run.checkpoints(best="val_accuracy")]
    assert metrics["val_accuracy"] in saved


@pytest.mark.full
def test_ae_images_is_better_than_linear_and_its_codes_pass_for_random_numbers(tmp_path: Path) -> None:
    _, metrics = trained("ae_images", tmp_path, workers=2)
    assert metrics["val_error"] < 0.7 * metrics["pca_error"] < 0.02
    assert 1.2 < metrics["confusion"] < 1.5 and 0.8 < metrics["code_std"] < 1.2


@pytest.mark.full
def test_recommender_learns_the_tastes_with_workers_and_a_parameter_server(tmp_path: Path) -> None:
    run, metrics = trained("recommender", tmp_path, args=["--steps", 1980], workers=3, ps=1)
    assert 0.5 < metrics["val_rmse"] < 0.57 and run.status().saved_step == 1980
    weights = Path(run.result().model_dir, "recommender.weights.h5")
    assert weights.stat().st_size > 8 * 4 * (600 + 400)


@pytest.mark.full
def test_char_lm_predicts_more_than_half_of_the_characters(tmp_path: Path) -> None:
    assert trained("char_lm", tmp_path, args=["--steps", 1000])[1]["val_accuracy"] > 0.55
