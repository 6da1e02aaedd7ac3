"""The fixture comes with podlift: `podlift_run` returns what the run has left, and raises what made it fail."""

from pathlib import Path


def test_two_workers_learn_something_and_leave_a_model(podlift_run) -> None:
    result = podlift_run("train.py", workers=2, max_steps=50)
    assert result.metrics["val_binary_accuracy"] > 0.6
    assert Path(result.model_dir, "circle.keras").is_file()
