"""CommunicationOptions of a program are explained in the plan, and NCCL without GPUs is refused there."""

from __future__ import annotations

import ast

import pytest

import sdk
from sdk.checks.communication import communications_of

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
    assert findings(sdk.plan("train.py", workers=2, accelerator="t4:2")) == [
        ("note", f"train.py:2 asks for {name}: {said}.")
    ]


def test_on_real_gpus_nccl_is_nccl(write) -> None:
    write("train.py", program(f"{CHOICE}.NCCL"))
    vertex = sdk.Vertex(project="my-project", bucket="my-bucket")
    ((level, said),) = findings(sdk.plan("train.py", workers=2, accelerator="t4:2", backend=vertex))
    assert (level, said) == ("note", "train.py:2 asks for NCCL: it exchanges data among the GPUs of all tasks.")


@pytest.mark.parametrize("where", [{}, {"backend": sdk.Vertex(project="my-project", bucket="my-bucket")}])
def test_nccl_without_gpus_is_refused_with_its_line_and_the_change_to_make(write, where: dict[str, sdk.Vertex]) -> None:
    write("train.py", "import options\n")
    write("options.py", program(f"{CHOICE}.NCCL"))
    with pytest.raises(sdk.InputError, match=r"options\.py:2 asks for NCCL, which exchanges data among GPUs") as caught:
        sdk.plan("train.py", workers=2, **where)
    assert "Received: accelerator='cpu'. Use CommunicationImplementation.AUTO there" in str(caught.value)
    assert "Nearest: accelerator='l4:2'." in str(caught.value)


def test_nccl_that_depends_on_a_condition_is_a_warning(write) -> None:
    write("train.py", f"import tensorflow as tf\nx = {CHOICE}.NCCL if len([]) else {CHOICE}.RING\n")
    warned = [found.message for found in sdk.plan("train.py", workers=2).findings if found.level == "warning"]
    assert (
        "train.py:2 may ask for NCCL, which needs GPUs, and this job has none: choose AUTO or RING without GPUs."
        in warned
    )


def test_a_module_that_may_never_be_imported_is_a_warning(write) -> None:
    write("train.py", "def several():\n    import options\n")
    write("options.py", program(f"{CHOICE}.NCCL"))
    (warned,) = [found for found in sdk.plan("train.py").findings if "NCCL" in found.message]
    assert (warned.level, warned.message.partition(" may")[0]) == ("warning", "options.py:2")
