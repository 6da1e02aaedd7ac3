"""What a plan says of a program's strategies and communication, on both backends: uses that the job cannot serve, NCCL."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from support import input_error

import sdk
from sdk.checks.communication import communications_of

CLOUD: dict[str, Any] = {"backend": sdk.Vertex(project="my-project", bucket="my-bucket")}
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
        found = sdk.plan("train.py", **where, **options).findings
        return [each.message for each in found if "same weight" in each.message]

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
    with input_error("trains without parameter servers", "Received: ps=1", "Nearest: ps=0."):
        sdk.plan("train.py", workers=2, ps=1, **where)


OPTIONS = "tf.distribute.experimental.CommunicationOptions"
CHOICE = "tf.distribute.experimental.CommunicationImplementation"
MULTI = "tf.distribute.MultiWorkerMirroredStrategy"


def program(name: str) -> str:
    return f"import tensorflow as tf\nstrategy = {MULTI}(communication_options={OPTIONS}(implementation={name}))\n"


def findings(plan: sdk.Plan) -> list[tuple[str, str]]:
    return [(found.level, found.message) for found in plan.findings if "asks for" in found.message]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (program(f"{CHOICE}.NCCL"), [("NCCL", True)]),
        (program("'ring'"), [("RING", True)]),
        ("from tensorflow.distribute.experimental import CollectiveCommunication as C, CollectiveCommunication\n"
         "x = CollectiveCommunication.AUTO", [("AUTO", True)]),
        ("x = tf.distribute.MirroredStrategy(cross_device_ops=tf.distribute.NcclAllReduce())", [("NCCL", True)]),
        (f"x = {CHOICE}.NCCL if gpus else {CHOICE}.RING", [("NCCL", False), ("RING", False)]),
        (f"if gpus:\n    x = {CHOICE}.NCCL", [("NCCL", False)]),
        ("NCCL = 1\nmine.NCCL", []),
    ],
)  # fmt: skip
def test_the_communication_of_a_program_is_read_from_its_source(source: str, expected: list[tuple[str, bool]]) -> None:
    assert [(found.name, found.sure) for found in communications_of(ast.parse(source))] == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("RING", "TensorFlow's own exchange over gRPC, on CPUs and GPUs"),
        ("AUTO", "TensorFlow chooses NCCL among GPUs, and RING among CPUs, as here"),
        (
            "NCCL",
            "it needs GPUs. Among the logical CPU devices that stand in for them it runs as RING, with the same sums",
        ),
    ],
)
def test_a_plan_explains_each_with_its_line(write, name: str, said: str) -> None:
    write("train.py", program(f"{CHOICE}.{name}"))
    found = findings(sdk.plan("train.py", workers=2, accelerator="t4:2"))
    assert found == [("note", f"train.py:2 asks for {name}: {said}.")]
    if name == "NCCL":
        real = "train.py:2 asks for NCCL: it exchanges data among the GPUs of all tasks."
        assert findings(sdk.plan("train.py", workers=2, accelerator="t4:2", **CLOUD)) == [("note", real)]


@pytest.mark.parametrize("where", [{}, CLOUD])
def test_nccl_without_gpus_is_refused_with_its_line_and_the_change_to_make(write, where: dict) -> None:
    write("train.py", "import options\n")
    write("options.py", program(f"{CHOICE}.NCCL"))
    received = "Received: accelerator='cpu'. Use CommunicationImplementation.AUTO there"
    with input_error(
        "options.py:2 asks for NCCL, which exchanges data among GPUs", received, "Nearest: accelerator='l4:2'."
    ):
        sdk.plan("train.py", workers=2, **where)


def test_nccl_that_depends_on_a_condition_is_a_warning(write) -> None:
    write("train.py", f"import tensorflow as tf\nx = {CHOICE}.NCCL if len([]) else {CHOICE}.RING\n")
    warned = [found.message for found in sdk.plan("train.py", workers=2).findings if found.level == "warning"]
    said = "train.py:2 may ask for NCCL, which needs GPUs, and this job has none: choose AUTO or RING without GPUs."
    assert said in warned
    # As does one in a module that may never be imported.
    write("train.py", "def several():\n    import options\n")
    write("options.py", program(f"{CHOICE}.NCCL"))
    (warned,) = [found for found in sdk.plan("train.py").findings if "NCCL" in found.message]
    assert (warned.level, warned.message.partition(" may")[0]) == ("warning", "options.py:2")
