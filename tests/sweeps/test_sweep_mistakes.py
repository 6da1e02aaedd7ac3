"""Mistakes in a sweep are sentences before anything is written or spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sdk
from sdk.backends.vertex.backend import VertexBackend
from sdk.planning.settings.merge import Destination
from sdk.sweeps import creation

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("-u", "--units", type=int)
print(parser.parse_args())
"""
ANY = SCRIPT.replace("parse_args", "parse_known_args")
FUNCTION = "def main(lr, units=3):\n    pass\n"
GOOD: dict[str, Any] = {"space": {"lr": "log:1e-4..1e-1"}, "metric": "loss", "mode": "min", "trials": 4}


def mistakes(folder: Path, text: str = SCRIPT, entry: str = "train.py", **about: Any) -> tuple[str, ...]:
    (folder / "train.py").write_text(text)
    with pytest.raises(sdk.InputError) as raised:
        sdk.sweep(entry, **{**GOOD, "root": folder / "root", "name": "one", **about})
    assert not (folder / "root").exists()
    return raised.value.problems


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        ({"space": {"unit": "1..8"}, "text": SCRIPT.replace("--units", "--width")},
         "space: train.py takes no argument --unit. Known: lr, width."),
        ({"space": {"lrs": "1..8"}}, "space: train.py takes no argument --lrs. Did you mean 'lr'?"),
        ({"space": {"lrs": "1..8", "lr": [1, 2]}, "text": FUNCTION, "entry": "train:main"}, "lrs"),
        ({"space": {"units": [32, 64]}},
         "The space has 2 points, fewer than trials=4. Next: --trials 2 --sampler grid."),
        ({"sampler": "grid"},
         "sampler: a grid needs parameters with values that can be counted, and lr has a range of numbers. Next: a step, such "
         "as 0.0..0.5:0.1, or --sampler random."),
        ({"sampler": "tpes"}, "sampler: unknown. Received: 'tpes'. Did you mean 'tpe'?"),
        ({"mode": "maximum"}, "mode: unknown. Received: 'maximum'. Did you mean 'max'?"),
        ({"pruner": "hyperband"}, "pruner: unknown. Received: 'hyperband'. Known: asha, median, none."),
        ({"metric": ""}, "metric: name the metric that the program reports. Received: ''."),
        ({"trials": 0}, "trials must be a whole number from 1. Received: 0."),
        ({"parallel": 0}, "parallel must be a whole number from 1. Received: 0."),
        ({"space": {}}, 'space: name a parameter, such as {"lr": "log:1e-5..1e-1"}. Received: {}.'),
        ({"args": {"lr": 1}}, "lr is a parameter of the space and an argument. Next: remove one."),
        ({"max_cost_usd": 0}, "max_cost_usd must be above 0. Received: 0."),
        ({"name": "a" * 38}, f"The name is too long. Received: {'a' * 38!r}. Allowed: 34 characters."),
        ({"worker": 2}, "Unknown setting 'worker'. Did you mean 'workers'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence_and_nothing_is_written(tmp_path, monkeypatch, about: dict, sentence: str) -> None:
    monkeypatch.chdir(tmp_path)
    found = mistakes(tmp_path, **about)
    assert any(problem == sentence or (len(sentence) < 9 and sentence in problem) for problem in found), found


def test_all_mistakes_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(mistakes(tmp_path, space={"lr": "log:0..1"}, mode="most", trials=0)) == 3


@pytest.mark.parametrize("text", [SCRIPT, SCRIPT.replace('"--units"', "NAME"), ANY, "import sys\nprint(sys.argv)\n"])
def test_a_program_with_unreadable_arguments_is_not_refused(tmp_path: Path, text: str) -> None:
    known = text == SCRIPT
    (tmp_path / "train.py").write_text(text)
    about = {**GOOD, "space": {"unit" if known else "other": "1..8"}, "root": tmp_path / "root", "name": "one"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sdk.sweeps.creation.start", lambda *about: False)
        assert sdk.sweep(tmp_path / "train.py", **about).name == "one"


def test_a_limit_on_the_cost_below_the_cost_of_one_trial_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    vertex = sdk.Vertex(project="mine", bucket="mine", regions=["us-central1"])
    about = {"backend": vertex, "accelerator": "t4", "max_cost_usd": 0.2, "timeout": "1h", "root": None}
    found = mistakes(tmp_path, **about)
    sentence = (
        "max_cost_usd=0.2: no trial could start: 0.0000 USD of 0.20 USD are spent, and this trial may cost 0.62 USD."
    )
    assert sentence in found


@pytest.mark.parametrize(("limits", "parallel"), [({}, 4), ({"us-east1": 7}, 3), ({"us-east1": 1}, 1)])
def test_fewer_trials_run_at_a_time_if_the_quota_is_known_to_be_small(tmp_path, monkeypatch, limits, parallel) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    metric = "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"
    online, probe = {"quotas": {metric: {"exists": True, "error": "", "limits": limits}}}, VertexBackend.probe
    monkeypatch.setattr(VertexBackend, "probe", lambda *words, **named: replace(probe(*words, **named), online=online))
    target = Destination(
        backend=sdk.Vertex(project="podlift-1", bucket="mine", regions=["us-east1"], image="gcr.io/a/b:1")
    )
    about = {**GOOD, "trials": 9, "parallel": None, "pruner": "none", "sampler": "tpe", "seed": 0}
    prepared = creation.prepare("train.py", {"accelerator": "l4:2", "timeout": "1h"}, target, about)
    assert prepared.spec.parallel == parallel
