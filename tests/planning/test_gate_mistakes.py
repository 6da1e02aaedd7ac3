"""All mistakes of a gate are named before a run, at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.checks import gates
from sdk.job.capabilities import LOCAL, Capabilities
from sdk.planning.settings.merge import Destination

GOOD = "def measure(model, data):\n    return {'accuracy': 1.0}\n"
ASKED: dict[str, Any] = {"gate_evaluate": "quality:measure", "gate_metric": "accuracy", "gate_data": "test"}


@pytest.fixture
def project(write) -> Path:
    write("quality.py", GOOD)
    write("test.csv", "1\n")
    return Path(write("train.py", "print(1)"))


def planned(**more: Any) -> sdk.Plan:
    return sdk.plan("train.py", **{**ASKED, "inputs": {"test": "test.csv"}, **more})


def refused(**more: Any) -> tuple[str, ...]:
    with pytest.raises(sdk.InputError) as caught:
        planned(**more)
    return caught.value.problems


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        ("qualty:measure", "the packaged code has no such module. Did you mean 'quality'?"),
        ("quality:mesure", "quality.py has no function 'mesure'. Did you mean 'measure'?"),
        ("json:loads", "the packaged code has no such module"),
    ],
)
def test_a_function_that_is_not_in_the_packaged_code_is_named_with_the_nearest(project, evaluate, said) -> None:
    (problem,) = refused(gate_evaluate=evaluate)
    assert problem.startswith(f"gate_evaluate: {evaluate!r}: {said}")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def measure(model): pass", "with the folder of a model and the place of the data. It is measure(model)."),
        ("def measure(a, b, c): pass", "Next: def measure(model: str, data: str) -> dict[str, float]."),
        ("async def measure(a, b): pass", "quality.py:1: measure is an async function"),
        ("def measure(a, b):\n    yield {}", "measure is a generator"),
        ("def measure(a, b", "quality.py:1: syntax error"),
        ("import no_such_module_at_all\n" + GOOD, "quality.py:1 imports 'no_such_module_at_all'"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_called_with_a_model_and_its_data_is_refused(project, write, source, said) -> None:
    write("quality.py", source)
    assert said in "\n".join(refused())


@pytest.mark.parametrize(
    "source",
    [
        "def measure(model, data, batch=32): return {}",
        "from train import *",
        "import functools\n@functools.cache\ndef measure(model): return {}",
        "try:\n    from fast import measure\nexcept ImportError:\n    def measure(a, b): return {}",
    ],
)
def test_a_function_that_reading_cannot_judge_is_accepted(project: Path, write, source: str) -> None:
    write("quality.py", source)
    write("fast.py", GOOD)
    assert planned().job.gate.data == "test"


def test_a_function_of_a_package_or_of_the_program_itself_is_found(project: Path, write) -> None:
    write("checks/__init__.py", "from .quality import measure\n")
    write("checks/quality.py", GOOD)
    write("train.py", f"{GOOD}print(1)")
    for evaluate in ("checks:measure", "checks.quality:measure", "train:measure"):
        planned(gate_evaluate=evaluate)
    assert "Did you mean 'checks.quality'?" in refused(gate_evaluate="checks.qualitty:measure")[0]


def test_a_module_that_is_not_packaged_is_named_with_the_way_to_package_it(project: Path) -> None:
    said = "gate_evaluate: 'quality:measure': quality.py is not packaged. Next: code_project or code_include."
    assert refused(code_exclude=["quality.py"]) == (said,)


def test_the_modules_of_a_gate_are_no_modules_of_the_training(project: Path, write) -> None:
    write("quality.py", "import tensorflow\n" + GOOD)
    assert planned(local_start="fork").preload == sdk.plan("train.py", local_start="fork").preload


def test_everything_that_is_wrong_with_a_gate_is_in_one_error(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODLIFT_GATE_DATA", "tset")
    with pytest.raises(sdk.InputError) as caught:
        sdk.submit("train.py", gate_evaluate="quality:mesure", gate_metric="accuracy", inputs={"test": "test.csv"})
    assert caught.value.problems == (
        "gate_data: no such input. Received: 'tset'. Did you mean 'test'? gate_data comes from PODLIFT_GATE_DATA.",
        "gate_evaluate: 'quality:mesure': quality.py has no function 'mesure'. Did you mean 'measure'?",
    )


def test_a_gate_without_data_is_refused_with_the_inputs_that_there_are(project: Path) -> None:
    missing = "gate_data: missing. It names the input with the data for the evaluation. Known: test."
    assert refused(gate_data=None) == (missing,)
    assert "The job has no inputs. Next: --input NAME=URL." in refused(inputs={})[0]


def test_a_backend_that_registers_no_models_says_so_before_the_run() -> None:
    job = sdk.Job("train.py", model="digits", gate=sdk.Gate(evaluate="m:f", data="test", metric="accuracy"))
    assert gates.mistakes(job, ["test"], LOCAL) == []
    assert gates.mistakes(job, ["test"], Capabilities()) == [
        "model: this backend does not register the models of its runs. Next: leave it out, and podlift models add RUN once the "
        "run has ended."
    ]
    assert gates.mistakes(sdk.Job("train.py"), [], Capabilities()) == []


def test_a_drill_neither_registers_nor_evaluates(project: Path, write) -> None:
    from sdk.drill.runs import prepare

    given = {**ASKED, "model": "digits", "warm_start": "last", "checkpoint_every": "10steps"}
    write("train.py", "import keras\nkeras.Model().fit()")
    made = prepare("train.py", given, Destination(), {}, kills=["chief-0@step:3"], seed=1)
    assert (made.model, made.job.gate, made.job.warm_start) == ("", sdk.Gate(), None)
