"""A preflight of whole programs: it reports each marked line of the corpus, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from programs.tpu_corpus import BAD, CORPUS, GOOD
from support import REPO

import sdk
from sdk.cli import app
from sdk.errors import InputError
from sdk.planning import preflight_findings
from sdk.preflight import PreflightFinding, PreflightLimits, PreflightReport, describe, preflight
from sdk.process import spawn

pytestmark = pytest.mark.tensorflow

HERE = Path(__file__).parent
# In every run: one of each kind of step, and of each finding. The others are as quick, but many.
ALWAYS = {"boolean_mask", "summaries", "reads_a_variable", "custom_loop"}
DIGITS = REPO / "jobs" / "digits" / "train.py"
_MARK = re.compile(r"# (refused|warning): ([\w-]+)$")


class Warm:
    """A process that has imported TensorFlow, and inspects one program after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        env = {**os.environ, "PYTHONPATH": str(REPO), "TF_CPP_MIN_LOG_LEVEL": "2"}
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([sys.executable, str(HERE / "warm.py")], text=True, env=env, **streams)

    def look(self, text: str, name: str = "train.py", **more: object) -> PreflightReport:
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        (folder / name).write_text(text)
        self._process.stdin.write(json.dumps({"entry": name, "cwd": str(folder), **more}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return PreflightReport.from_json(json.dumps(answer))

    def close(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    process = Warm(tmp_path_factory.mktemp("programs"))
    yield process
    process.close()


def marked(program: str) -> set[tuple[int, str, str]]:
    marks = ((number, _MARK.search(line)) for number, line in enumerate(program.splitlines(), 1))
    return {(number, mark[1], mark[2]) for number, mark in marks if mark}


def cases():
    return [
        pytest.param(text, id=name, marks=() if name.partition("/")[2] in ALWAYS else (pytest.mark.full,))
        for name, text in CORPUS.items()
    ]


@pytest.mark.shows("A program for an a100:4 or a v5e-8 runs on stand-ins")
@pytest.mark.parametrize("program", cases())
def test_every_mark_in_a_program_is_found_at_its_line_and_nothing_else(warm, program):
    report = warm.look(program)
    found = {(finding.line, finding.level, finding.rule) for finding in report.findings}
    assert found == marked(program), describe(report)
    assert {finding.path for finding in report.findings} <= {"train.py"}
    assert report.stopped == ""
    assert report.refused == any(level == "refused" for _, level, _ in marked(program))


def test_the_corpus_has_a_program_for_every_rule_about_a_line():
    page = (REPO / "docs" / "reference" / "preflight-rules.md").read_text()
    documented = re.findall(r"^\| `([\w-]+)` \| (?:refused|warning)", page, re.M)
    assert {rule for program in CORPUS.values() for _, _, rule in marked(program)} == set(documented)
    assert len(BAD) >= 14 and len(GOOD) >= 7


@pytest.mark.full
def test_digits_passes_with_its_figures(warm):
    report = warm.look(DIGITS.read_text())
    assert (report.refused, report.stopped, report.reached) == (False, "", "done"), describe(report)
    assert (report.replicas, report.batch) == (8, 8)
    # 38,282 numbers of float32, with two slots of Adam each, and some counters.
    assert 3 * 4 * 38_282 <= report.state_bytes < report.step_bytes < report.memory_bytes == 16 << 30
    assert report.largest_batch > 1000
    assert any("Conv2D" in layer.name or "convolution" in layer.name for layer in report.layers)
    text = describe(report)
    assert "v5e-8: found nothing that a TPU refuses" in text
    assert "8 examples on each of 8 replicas, compiled to 1 program" in text
    assert [finding.rule for finding in report.findings] == ["uneven-batch"]  # 1,500 pictures, 64 at a time


def test_places_in_a_notebook_are_cells_and_their_lines(warm):
    program = BAD["boolean_mask"].splitlines(keepends=True)
    number = next(number for number, line in enumerate(program) if _MARK.search(line))
    cut = max(at for at in range(number) if program[at].startswith(("def ", "@")))
    cells = [{"cell_type": "code", "source": "".join(part)} for part in (program[:cut], program[cut:])]
    notebook = json.dumps({"nbformat": 4, "metadata": {}, "cells": cells})
    (finding,) = warm.look(notebook, "mask.ipynb").findings
    assert (finding.path, finding.line) == ("mask.ipynb, cell 2", number - cut + 1)
    assert str(finding).startswith(f"mask.ipynb, cell 2, line {number - cut + 1}: warning: ")


ARRAYS = """import tensorflow as tf
import keras
import numpy as np

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
with tf.distribute.TPUStrategy(resolver).scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.zeros((100, 8), "float32"), np.zeros((100, 1), "float32"), batch_size=64, verbose=0)
"""


def test_an_uneven_batch_of_arrays_is_found_where_tensorflow_is_imported_first(write):
    write("train.py", ARRAYS)
    report = preflight("train.py", accelerator="v5e-8")
    assert [(finding.line, finding.rule) for finding in report.findings] == [(11, "uneven-batch")], describe(report)
    assert report.passed


def test_strict_mode_refuses_dynamic_shapes(warm):
    report = warm.look(BAD["boolean_mask"], strict=True)
    assert [(finding.level, finding.rule) for finding in report.findings] == [("refused", "dynamic-shape")]


@pytest.mark.parametrize(
    ("text", "why", "code"),
    [
        ("print('no model')", "The program ended without a training step", 2),
        ("import sys\nsys.exit()", "The program ended without a training step", 2),
        ("open('no.csv')", "The program failed in train.py:1 before its first training step was known: FileNotFoundError", 1),
        ("import sys\nsys.exit(3)", "The program exited with 3 before its first training step", 1),
        ("import os\nos._exit(5)", "The process ended with 5", 1),
    ],
)  # fmt: skip
def test_a_program_without_a_step_has_no_verdict_and_says_why(write, capsys, text, why, code):
    write("train.py", text)
    assert app.run(["preflight", "train.py", "--accelerator", "v5e-8", "--json"]) == code
    answer = capsys.readouterr().out
    assert json.loads(answer)["outcome"] == ("no step" if code == 2 else "failed")
    shown = describe(PreflightReport.from_json(answer))
    assert f"stopped after: code unpacked. {why}" in shown
    assert "v5e-8: no verdict: " in shown and "no step was inspected" in shown
    assert "nothing that a TPU refuses" not in shown
    if text == "print('no model')":
        assert app.run(["preflight", "train.py", "--accelerator", "v5e-8"]) == code
        assert why in capsys.readouterr().out, "for people"


NEVER = """
import os, subprocess, sys, time
pids = [os.getpid(), subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid]
open(sys.argv[1] + ".part", "w").write(" ".join(map(str, pids)))
os.rename(sys.argv[1] + ".part", sys.argv[1])
data = bytearray(int(sys.argv[2]))
for place in range(0, len(data), 4096):
    data[place] = 1
time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("limits", "size", "why"),
    [
        (PreflightLimits(seconds=4), 1, "longer than 4 s"),
        (PreflightLimits(seconds=60, bytes=300_000_000), 1 << 30, "0.3 GB of memory"),
    ],
    ids=["time", "memory"],
)
def test_a_program_that_meets_a_limit_is_ended_with_all_that_it_has_started(write, tmp_path, limits, size, why):
    write("train.py", NEVER)
    told = tmp_path / "pids"
    report = preflight("train.py", accelerator="v5e-8", given={"args": [str(told), str(size)]}, limits=limits)
    assert why in report.stopped
    assert report.outcome == "unfinished" and not report.passed
    pids = [int(pid) for pid in told.read_text().split()] if told.exists() else []
    assert [pid for pid in pids if spawn.identity(pid)] == []


def test_a_function_and_a_job_are_inspected_too(write):
    write("train.py", "def main(word):\n    raise RuntimeError(word)\n")
    by_name = preflight("train:main", accelerator="v5e-8", given={"args": {"word": "mine"}})
    by_job = preflight(sdk.Job("train:main", args={"word": "mine"}), accelerator="v5e-8")
    for report in (by_name, by_job):
        assert "failed in train.py:2 before its first training step was known: RuntimeError: mine" in report.stopped


@pytest.mark.parametrize("accelerator", ["cpu", "l4", "v5e-16", "v6e-8"])
def test_a_tpu_that_no_job_gets_is_refused_with_the_nearest(write, accelerator):
    write("train.py", "import keras")
    with pytest.raises(InputError, match="v5e-8"):
        preflight("train.py", accelerator=accelerator)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def said(plan):
    return [finding.message for finding in plan.findings if "TPU" in finding.message or "reflight" in finding.message]


def store(plan: sdk.Plan, finding: PreflightFinding) -> None:
    report = PreflightReport(accelerator="v5e-8", findings=(finding,), reached="done")
    preflight_findings.store_report(plan, report, os.environ, strict=False)


REFUSED = PreflightFinding("train.py", 3, "refused", "strings", "text in the step", "no text", "numbers")
PRICED = PreflightFinding("train.py", 4, "warning", "batch", "each replica has 5 examples", "eight rows", "8")


def test_a_tpu_plan_shows_the_verdict_on_the_same_code_or_says_that_it_is_missing(write, cache):
    write("train.py", "import keras\n")
    plan = sdk.plan("train.py", accelerator="v5e-8")
    (missing,) = said(plan)
    assert "podlift preflight train.py --accelerator v5e-8" in missing
    store(plan, PRICED)
    assert "found nothing that a TPU refuses, and 1 warning" in said(sdk.plan("train.py", accelerator="v5e-8"))[0]
    store(plan, REFUSED)
    again = sdk.plan("train.py", accelerator="v5e-8")
    assert [finding for finding in again.findings if "1 problem" in finding.message and finding.level == "warning"]
    cloud = sdk.Vertex(project="our-project", regions=["us-central1"], bucket="somebodys-runs")
    assert "1 problem" in said(sdk.plan("train.py", accelerator="v5e-8", backend=cloud))[0]
    assert "not been checked for TPUs" in said(sdk.plan("train.py", accelerator="v5e-4"))[0]
    assert said(sdk.plan("train.py")) == []
    write("train.py", "import keras, os\n")
    assert "not been checked for TPUs" in said(sdk.plan("train.py", accelerator="v5e-8"))[0]


def test_preflight_answers_from_its_cache_and_exits_with_1_only_if_a_tpu_refuses(write, cache, capsys):
    write("train.py", "import keras\n")
    plan = sdk.plan("train.py", accelerator="v5e-8")
    for finding, code in ((PRICED, 0), (REFUSED, 1)):
        store(plan, finding)
        assert app.run(["preflight", "train.py", "--accelerator", "v5e-8"]) == code
        shown = capsys.readouterr().out
        assert str(finding) in shown.splitlines()
        assert app.run(["preflight", "train.py", "--accelerator", "tpu-v5e-8", "--json"]) == code
        assert PreflightReport.from_json(capsys.readouterr().out).findings == (finding,)


def test_the_command_asks_for_a_tpu_and_names_one(write, capsys):
    write("train.py", "import keras\n")
    assert app.run(["preflight", "train.py"]) == 2
    assert "--accelerator v5e-8" in capsys.readouterr().err
    assert app.run(["preflight", "train.py", "--accelerator", "l4"]) == 2
    assert "v5e-8" in capsys.readouterr().err


@pytest.mark.full
def test_a_verdict_is_found_by_the_command_and_remembered(write, cache, capsys):
    ((line, _, _),) = marked(BAD["python_in_step"])
    (Path.cwd() / "train.py").write_text(BAD["python_in_step"])
    first = app.run(["preflight", "train.py", "--accelerator", "v5e-8"])
    shown = capsys.readouterr().out
    assert (first, f"train.py:{line}: refused:" in shown) == (1, True)
    assert app.run(["preflight", "train.py", "--accelerator", "v5e-8"]) == 1
    assert capsys.readouterr().out == shown
    assert "1 problem" in said(sdk.plan("train.py", accelerator="v5e-8"))[0]
