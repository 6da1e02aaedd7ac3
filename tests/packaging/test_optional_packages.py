"""Calls of TensorFlow and Keras that need another package are named in the plan, as imports are."""

from __future__ import annotations

import re

import pytest

import sdk

CALLS = [
    ("from tensorflow import keras\ncalls = [keras.callbacks.TensorBoard('logs')]\n",
     "train.py:2 calls tensorflow.keras.callbacks.TensorBoard", "tensorboard"),
    ("from keras.callbacks import TensorBoard as Board\ndef main():\n    Board()\n",
     "train.py:3 calls keras.callbacks.TensorBoard", "tensorboard"),
    ("import tensorflow as tf\ntf.summary.scalar('x', 1, 1)\ntf.summary.image('x', 1, 1)\n",
     "train.py:2 calls tensorflow.summary.scalar (and 1 more call like it)", "tensorboard"),
    ("import keras\nkeras.utils.plot_model(None)\n", "train.py:2 calls keras.utils.plot_model", "pydot"),
    ("import keras\nkeras.utils.load_img('x.png')\n", "train.py:2 calls keras.utils.load_img", "PIL"),
]  # fmt: skip


def warnings_of(requirements: list[str]) -> list[str]:
    plan = sdk.plan("train.py", code_isolated=True, code_requirements=requirements)
    return [finding.message for finding in plan.findings if finding.level == "warning"]


@pytest.mark.parametrize(("text", "said", "package"), CALLS)
def test_a_call_that_needs_a_package_is_named_with_the_package(write, text: str, said: str, package: str) -> None:
    write("train.py", text)
    (message,) = warnings_of(["tensorflow==2.21.0"])
    assert message.startswith(f"{said}, which needs the package {package!r}, which TensorFlow does not install: ")
    assert re.search(r"Next: add .* to the requirements", message)
    assert warnings_of(["tensorflow==2.21.0", "tensorboard", "pydot", "pillow"]) == []
    assert len(warnings_of(["tensorflow==2.20.0"])) == (package != "tensorboard"), "up to 2.20 it brings TensorBoard"
    assert len(warnings_of(["tensorflow"])) == 1, "it may be the newest one"


def test_graphviz_is_missed_where_its_program_is_not_found(write, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    write("train.py", CALLS[3][0])

    def said() -> list[str]:
        return [finding.message for finding in sdk.plan("train.py").findings if "the program 'dot'" in finding.message]

    monkeypatch.setenv("PATH", str(tmp_path))
    (message,) = said()
    assert message.startswith(
        "train.py:2 calls keras.utils.plot_model, which needs the program 'dot': it is not installed here."
    )
    (tmp_path / "dot").write_text("#!/bin/sh\n")
    (tmp_path / "dot").chmod(0o755)
    assert said() == []


@pytest.mark.parametrize(
    "text",
    [
        "import keras\ntry:\n    keras.utils.plot_model(None)\nexcept ImportError:\n    pass\n",
        "class TensorBoard:\n    pass\nTensorBoard()\n",
        "import keras\nkeras.callbacks.EarlyStopping()\n",
    ],
)
def test_a_guarded_import_or_the_programs_own_module_is_not_named(write, text: str) -> None:
    write("train.py", text)
    assert warnings_of(["tensorflow==2.21.0"]) == []
