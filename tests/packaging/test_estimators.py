"""A program with Estimators is found before it runs, if its tasks get a TensorFlow that has none."""

from __future__ import annotations

import pytest
from support import PROGRAMS

import sdk
from sdk.packaging.audit.installed import Installed

IN_MAIN = (
    "import tensorflow as tf\ndef main():\n    tf.estimator.Estimator(None)\nif __name__ == '__main__':\n    main()\n"
)


@pytest.fixture(autouse=True)
def tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Installed, "versions", {**Installed().versions, "tensorflow": "2.21.0"})


def found(**code: object) -> tuple[str, str]:
    """Return the level and the sentence about Estimators; empty for none."""
    try:
        plan = sdk.plan(sdk.Job("train.py", code=sdk.Code(**code)))
    except sdk.InputError as error:
        return "error", next(problem for problem in error.problems if "tf.estimator" in problem)
    said = [(finding.level, finding.message) for finding in plan.findings if "tf.estimator" in finding.message]
    return said[0] if said else ("", "")


@pytest.mark.parametrize(
    ("text", "location"),
    [
        (IN_MAIN, "train.py:3"),
        ("import tensorflow.compat.v1 as tf\nconfig = tf.estimator.RunConfig()\n", "train.py:2"),
        ("from tensorflow import estimator\n", "train.py:1"),
        ("import tensorflow as tf\nmade = tf.keras.estimator.model_to_estimator\n", "train.py:2"),
    ],
)
def test_a_use_that_certainly_runs_is_a_mistake_with_both_ways_out(write, text: str, location: str) -> None:
    write("train.py", text)
    level, sentence = found()
    assert level == "error"
    assert sentence.startswith(f"{location} uses tf.estimator")
    assert "TensorFlow 2.21.0" in sentence and "tensorflow==2.15.*" in sentence and "--code-isolated" in sentence


@pytest.mark.parametrize(
    "text",
    [
        "import tensorflow as tf\ndef old():\n    tf.estimator.Estimator(None)\n",
        "import tensorflow as tf\nif hasattr(tf, 'estimator'):\n    tf.estimator.Estimator(None)\n",
        "import tensorflow as tf\ndef main(new=True):\n    if new:\n        return\n    tf.estimator.Estimator(None)\nmain()\n",
        "import tensorflow as tf\ntry:\n    tf.estimator.Estimator\nexcept AttributeError:\n    pass\n",
    ],
)
def test_a_use_that_may_not_run_is_a_warning(write, text: str) -> None:
    write("train.py", text)
    level, sentence = found()
    assert level == "warning" and "--code-isolated" in sentence


def test_the_estimator_program_is_an_error_unless_an_old_tensorflow_is_pinned(write) -> None:
    write("train.py", (PROGRAMS / "estimator.py").read_text())
    assert found()[0] == "error"
    write("requirements.txt", "tensorflow==2.15.*\n")
    assert found(isolated=True) == ("", "")
    write("requirements.txt", "tensorflow>=2.10\n")
    assert found(isolated=True)[0] == "error", "pip takes the newest"


def test_an_old_tensorflow_of_the_environment_has_them_and_another_estimator_is_none(write, monkeypatch) -> None:
    write("model.py", "estimator = 1\n")
    write("train.py", "import tensorflow, model\nprint(model.estimator)\n")
    assert found() == ("", "")
    monkeypatch.setattr(Installed, "versions", {**Installed().versions, "tensorflow": "2.15.1"})
    write("train.py", IN_MAIN)
    assert found() == ("", "")
