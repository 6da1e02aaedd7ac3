"""podlift plan --fidelity: what of a service is reproduced before a run goes there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def rows(here, write) -> Callable[..., dict[str, tuple[str, str]]]:
    """Return local and emulator by the sentence, as `podlift plan` prints them."""
    write("train.py", "print(1)")

    def read(*words: str) -> dict[str, tuple[str, str]]:
        shown = here("plan", "train.py", "--backend", "vertex", "--fidelity", *words)
        assert shown.code == 0, shown.stderr
        header, *lines = [line.split("\t") for line in shown.stdout.splitlines()]
        assert header == ["local", "emulator", "what the service does"]
        return {text: (local, emulator) for local, emulator, text in lines}

    return read


def about(rows: dict[str, tuple[str, str]], words: str) -> list[tuple[str, str]]:
    return [marks for text, marks in rows.items() if words in text]


def test_each_behaviour_says_where_it_is_reproduced_and_how_to_try_what_is_not(rows) -> None:
    found = rows()
    assert about(found, "The exit code of the first task decides") == [("yes", "yes")]
    assert about(found, "Log lines may arrive late") == [("no", "yes")]
    assert about(found, "Try it: podlift submit jobs/digits/train.py --backend vertex --max-cost-usd 1") == [
        ("no", "no")
    ]
    assert all("Try it:" in text for text, marks in found.items() if marks == ("no", "no"))


def test_only_what_concerns_the_job_is_shown(rows) -> None:
    alone = rows()
    several = rows("--workers", "2", "--accelerator", "t4", "--vertex-provisioning", "spot")
    tpu = rows("--accelerator", "v5e-1")
    for words in ("NCCL", "reach each other by name", "A spot job"):
        assert (bool(about(alone, words)), bool(about(several, words))) == (False, True), words
    assert about(tpu, "TPU's devices") == [("yes", "yes")] and not about(several, "TPU")


def test_the_answer_as_json_names_the_tests_that_show_it(here, write) -> None:
    write("train.py", "print(1)")
    answer = json.loads(here("plan", "train.py", "--backend", "vertex", "--fidelity", "--json").stdout)
    shown_by = {each["name"]: each["shown_by"] for each in answer["behaviours"]}
    path, _, test = shown_by["chief-decides"]["local"][0].partition("::")
    assert f"def {test}(" in (REPO / path).read_text()
    assert shown_by["bill"] == {} and answer["backend"] == "vertex"


def test_a_run_of_this_machine_goes_to_no_service(here, write) -> None:
    write("train.py", "print(1)")
    shown = here("plan", "train.py", "--fidelity")
    assert shown.code == 2 and "--backend vertex --fidelity" in shown.stderr
