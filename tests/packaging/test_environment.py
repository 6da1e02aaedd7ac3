from __future__ import annotations

import pytest

import sdk

COUNTS = "import json, os\nconfig = json.loads(os.environ['TF_CONFIG'])\nworkers = len(config['cluster']['worker'])\n"
ASKS = "def chief(task_type, task_id):\n    return (task_type == 'worker' and task_id == 0) or task_type is None\n"


def warnings_of(plan: sdk.Plan) -> list[str]:
    return [finding.message for finding in plan.findings if finding.level == "warning"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (COUNTS, "train.py:3 uses the number of workers as the number of tasks"),
        (ASKS, "train.py:2 treats worker 0 as the chief"),
    ],
)
def test_a_program_that_expects_no_chief_is_told_how_to_get_a_cluster_without_one(write, text: str, said: str) -> None:
    write("train.py", text)
    (message,) = warnings_of(sdk.plan("train.py", workers=2))
    assert message.startswith(said)
    assert "local_cluster='workers'" in message
    assert warnings_of(sdk.plan("train.py", workers=2, local_cluster="workers")) == []
    assert warnings_of(sdk.plan("train.py")) == [], "one task has no cluster"


@pytest.mark.parametrize(
    "text",
    [
        "cluster = {'worker': [1]}\nprint(len(cluster))\nprint(len([1]['worker':]))\n",
        "def chief(task_type, task_id):\n    return task_type == 'chief' or (task_type == 'worker' and 'chief' not in spec)\n",
        "task_id = 0\nif task_id == 0 and True:\n    pass\n",
    ],
)
def test_programs_that_ask_for_the_chief_hear_nothing(write, text: str) -> None:
    write("train.py", text)
    assert warnings_of(sdk.plan("train.py", workers=2)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras\n",
        "import os\nos.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')\nimport tensorflow\n",
        "import arrange\nimport keras\n",
        "import os\ndef quiet():\n    os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\nquiet()\nimport keras\n",
        "import os\ndef unseen():\n    os.environ['XLA_FLAGS'] = 'x'\nimport keras\n",
        "import keras, os\nos.environ['TF_CONFIG'] = '{}'\n",
        "import os\nos.environ['MY_TF_THING'] = 'x'\nprint(os.environ['MY_TF_THING'])\n",
    ],
)
def test_variables_that_are_set_in_time_and_others_are_the_programs_own_business(write, monkeypatch, text: str) -> None:
    monkeypatch.setenv("MY_TF_THING", "which the program sets itself")
    write("arrange.py", "import os\nos.environ['KERAS_BACKEND'] = 'jax'\n")
    write("train.py", text)
    assert [said for said in warnings_of(sdk.plan("train.py")) if " sets " in said or " reads " in said] == []


LATE = [
    ("import os, keras\nos.environ['KERAS_BACKEND'] = 'jax'\n", "train.py:2 sets KERAS_BACKEND after train.py:1 has"),
    ("import using\nimport os\nos.environ['XLA_FLAGS'] = 'x'\n", "train.py:3 sets XLA_FLAGS after using.py:1 has"),
    ("import keras\nimport arrange\n", "arrange.py:2 sets KERAS_BACKEND after train.py:1 has"),
    ("import os\ndef main():\n    os.environ['XLA_FLAGS'] = 'x'\nimport keras\nif __name__ == '__main__':\n    main()\n",
     "train.py:3 sets"),
    ("from os import environ\nimport keras\nenviron.update({'A': 'b'}, OMP_NUM_THREADS='1')\n", "train.py:3 sets OMP_NUM"),
    ("import os, keras\nos.putenv('OMP_NUM_THREADS', '1')\n", "train.py:2 sets OMP_NUM_THREADS"),
    ("import os, keras\nif True:\n    os.environ['XLA_FLAGS'] = 'x'\n", "train.py:3 sets XLA_FLAGS"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), LATE)
def test_variables_that_a_program_sets_after_tensorflow_are_too_late(write, text: str, said: str) -> None:
    write("using.py", "import tensorflow\n")
    write("arrange.py", "import os\nos.environ['KERAS_BACKEND'] = 'jax'\n")
    write("train.py", text)
    (message,) = warnings_of(sdk.plan("train.py"))
    assert message.startswith(said)


def test_the_function_that_is_called_runs_and_a_guard_for_main_then_does_not(write) -> None:
    write("train.py", """
        import os
        def main():
            import keras
            os.environ["XLA_FLAGS"] = "x"
        if __name__ == "__main__":
            os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
        """)  # fmt: skip
    plan = sdk.plan("train:main")
    (message,) = warnings_of(plan)
    assert message.startswith("train.py:5 sets XLA_FLAGS")
    assert not any("ONEDNN" in finding.message for finding in plan.findings)


@pytest.mark.parametrize(
    "text",
    [
        "import os\nkey = os.environ['MY_KEY']\n",
        "import os\nkey = os.environ.get('MY_KEY', 'none')\n",
        "import os\nif 'MY_KEY' in os.environ: pass\n",
        "import os\nos.environ.setdefault('MY_KEY', 'x')\n",
        "def main():\n    import reading\n",
    ],
)
def test_a_variable_read_but_not_passed_on_is_named_with_the_option_that_passes_it(write, monkeypatch, text) -> None:
    monkeypatch.setenv("MY_KEY", "S3CRET")
    write("reading.py", "import os\nos.environ['MY_KEY']\n")
    write("train.py", text)
    (message,) = warnings_of(sdk.plan("train.py"))
    assert "reads MY_KEY, which is set here but is not passed on. Next: --env MY_KEY." in message
    assert "S3CRET" not in message
    assert warnings_of(sdk.plan(sdk.Job("train.py", env={"MY_KEY": sdk.job.job.FromCaller()}))) == []
    monkeypatch.delenv("MY_KEY")
    assert warnings_of(sdk.plan("train.py")) == []
