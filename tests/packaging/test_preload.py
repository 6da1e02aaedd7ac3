"""The imports that tasks may share, read from the program: the shared modules, and the reasons against sharing."""

from __future__ import annotations

import pytest

import sdk
from sdk.job.findings import Finding


def plan(entry: str = "train.py", *, workers: int = 2, **settings) -> sdk.Plan:
    return sdk.plan(entry, workers=workers, **settings)


@pytest.mark.parametrize(
    ("text", "settings", "modules"),
    [
        ("import tensorflow as tf", {}, ["tensorflow", "keras"]),
        ("import tensorflow", {"code_keras": "legacy"}, ["tensorflow", "tf_keras"]),
        ("import keras", {}, ["keras"]),
        ("import keras", {"env": {"KERAS_BACKEND": "tensorflow"}}, ["keras"]),
        ("import tf_keras", {}, ["tf_keras"]),
        ("def main():\n    import tensorflow", {}, ["tensorflow", "keras"]),
        ("try:\n    import tensorflow\nexcept ImportError: pass", {}, ["tensorflow", "keras"]),
        ("import helper", {}, ["tensorflow", "keras"]),
    ],
)
def test_modules_of_the_program_are_imported_once(write, text: str, settings, modules: list[str]) -> None:
    write("helper.py", "import tensorflow")
    write("train.py", text)
    made = plan(**settings)
    assert made.preload == modules
    assert made.fresh == ""
    assert f"forked from one process that has imported {', '.join(modules)}" in str(made)


FRESH = [
    ("print(1)", "does not import TensorFlow"),
    ("import tensorflow, os\nos.environ['KERAS_BACKEND'] = 'tensorflow'", "train.py:2 sets KERAS_BACKEND"),
    ("import tensorflow, os\nos.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')", "sets TF_CPP_MIN_LOG_LEVEL"),
    ("import tensorflow, os\ndef unseen():\n    os.environ.update(OMP_NUM_THREADS='1')", "train.py:3 sets OMP_NUM_THREADS"),
    ("import tensorflow, os\nos.environ.pop('TF_XLA_FLAGS', None)", "sets TF_XLA_FLAGS"),
    ("import tensorflow\nfrom os import environ\nenviron |= dict(MKL_NUM_THREADS='1')", "sets MKL_NUM_THREADS"),
    ("import tensorflow, os\nos.putenv('GCS_READ_CACHE_BLOCK_SIZE_MB', '1')", "sets GCS_READ_CACHE"),
    ("import tensorflow, arrange", "arrange.py:2 sets KERAS_BACKEND"),
]  # fmt: skip
DOUBTED = [
    ("import tensorflow, os\nname = 'X'\nos.environ[name] = '1'", "train.py:3 sets a variable with a computed name"),
    ("import tensorflow, os\nos.environ.update(settings())", "sets a variable with a computed name"),
    ("import tensorflow, os\nos.environ.clear()", "sets a variable with a computed name"),
    ("import tensorflow\ntry:\n    import dotenv\nexcept ImportError: pass", "imports dotenv"),
    ("import tensorflow\ntry:\n    import torch\nexcept ImportError: pass", "imports torch"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), [*FRESH, *DOUBTED])
def test_where_sharing_would_differ_tasks_start_fresh_and_a_fork_overrules_doubts(write, text, reason) -> None:
    write("arrange.py", "import os\nos.environ['KERAS_BACKEND'] = 'jax'")
    write("train.py", text)
    made = plan()
    assert made.preload == []
    assert reason in made.fresh
    assert made.fresh in str(made)
    forked = plan(local_start="fork")
    if (text, reason) in DOUBTED:
        assert (forked.preload, forked.fresh) == (["tensorflow", "keras"], "")
    else:
        assert forked.preload == []
        assert Finding("warning", f"local_start='fork' is ignored: {made.fresh}.") in forked.findings


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['WANDB_MODE'] = 'offline'",
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'",
        "import os\nprint(os.environ.get('KERAS_BACKEND'), os.environ['HOME'], 'XLA_FLAGS' in os.environ)",
        "import os, subprocess\nsubprocess.run(['true'], env={**os.environ, 'XLA_FLAGS': 'x'})",
    ],
)
def test_variables_that_no_import_reads_make_no_difference(write, text: str) -> None:
    write("train.py", f"import tensorflow\n{text}")
    assert plan().preload == ["tensorflow", "keras"]


def test_a_single_task_is_forked_if_asked_for_and_another_backend_of_keras_never(write) -> None:
    write("train.py", "import tensorflow")
    assert "single task" in plan(workers=1).fresh
    assert plan(workers=1, local_start="fork").preload == ["tensorflow", "keras"]
    assert plan(local_start="spawn").fresh == "local_start='spawn'"
    write("train.py", "import keras")
    assert plan(env={"KERAS_BACKEND": "jax"}).fresh == "KERAS_BACKEND is not tensorflow"
