"""A use of strategies that the job cannot serve is in the plan, on both backends."""

from __future__ import annotations

from typing import Any

import pytest

import sdk

CLOUD = {"backend": sdk.Vertex(project="my-project", bucket="my-bucket")}
FIT = "model.fit(data, epochs=2)\n"
SERVED = "import tensorflow as tf\nstrategy = tf.distribute.ParameterServerStrategy(resolver)\n"


def warned(plan: sdk.Plan) -> list[str]:
    return [found.message for found in plan.findings if found.level == "warning" and "calls fit" in found.message]


@pytest.mark.parametrize("where", [{}, CLOUD])
def test_a_plan_says_that_keras_3_has_no_fit_under_parameter_servers(write: Any, where: dict[str, Any]) -> None:
    write("train.py", SERVED + FIT)
    assert warned(sdk.plan("train.py", workers=2, ps=1, **where)) == [
        "train.py:3 calls fit, which Keras 3 does not support under ParameterServerStrategy: it fails before its first step. "
        "Use a custom loop with ClusterCoordinator, or code_keras='legacy' (--code-keras legacy)."
    ]


@pytest.mark.parametrize(
    ("source", "options"),
    [
        (SERVED + FIT, {"ps": 1, "code_keras": "legacy"}),
        (SERVED + "scaler.fit(data)\n", {"ps": 1}),  # of another library
        (SERVED, {"ps": 1}),
        (f"import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n{FIT}", {}),
        (f"import sdk\nwith sdk.context().strategy.scope():\n    model = make()\n{FIT}", {}),
        (f"{SERVED}other = tf.distribute.MultiWorkerMirroredStrategy()\n{FIT}", {}),
    ],
)
def test_it_says_nothing_of_programs_that_work(write: Any, source: str, options: dict[str, Any]) -> None:
    write("train.py", source)
    assert warned(sdk.plan("train.py", workers=2, **options)) == []


@pytest.mark.parametrize("where", [{}, CLOUD])
def test_a_plan_says_that_several_tasks_without_a_strategy_train_apart(write: Any, where: dict[str, Any]) -> None:
    write("train.py", f"import keras\n{FIT}")
    assert warned(sdk.plan("train.py", **where)) == []
    assert warned(sdk.plan("train.py", workers=2, **where)) == [
        "train.py:2 calls fit, and no module that the program imports names a tf.distribute strategy: unless a package makes "
        "one, each of the 2 tasks trains its own model on all of the data. "
        "Next: make the model in sdk.context().strategy.scope()."
    ]


@pytest.mark.parametrize("where", [{}, CLOUD])
def test_a_plan_says_that_fit_of_tf_keras_weighs_replicas_alike(write: Any, where: dict[str, Any]) -> None:
    write("train.py", f"import tensorflow as tf\n{FIT}")

    def said(**options: Any) -> list[str]:
        return [
            each.message for each in sdk.plan("train.py", **where, **options).findings if "same weight" in each.message
        ]

    assert said(accelerator="a100:4", code_keras="legacy") == [
        "train.py:2 calls fit. In tf_keras, fit gives each of 4 replicas the same weight, even if some of them get more "
        "examples of a batch, as the last batch may. Use batches that 4 replicas divide and drop_remainder=True, a custom "
        "loop, or Keras 3."
    ]
    assert said(accelerator="a100:4") == said(accelerator="a100", code_keras="legacy") == []


@pytest.mark.parametrize("where", [{}, CLOUD])
@pytest.mark.parametrize(
    "name", ["MirroredStrategy", "MultiWorkerMirroredStrategy", "experimental.CentralStorageStrategy"]
)
def test_parameter_servers_of_another_strategy_are_refused(write: Any, where: dict[str, Any], name: str) -> None:
    write("train.py", f"import tensorflow as tf\nstrategy = tf.distribute.{name}()\n")
    with pytest.raises(sdk.InputError, match="trains without parameter servers") as caught:
        sdk.plan("train.py", workers=2, ps=1, **where)
    assert "Received: ps=1" in str(caught.value)
    assert "Nearest: ps=0." in str(caught.value)
