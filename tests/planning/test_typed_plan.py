"""The plan is typed, made once, and survives its JSON; its reader needs only the standard library."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import make_dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FINISHED_RUN, REPO

import sdk
from sdk.hardware import accelerators
from sdk.job import cluster
from sdk.job.findings import Finding
from sdk.job.payload import Drill, Kill, Payload
from sdk.job.plan import PackedFile, Plan
from sdk.job.values import given_fields
from sdk.job.wire import decode

SOURCES = [path for path in (REPO / "sdk").rglob("*.py") if "emulator" not in path.parts]
SECONDS = st.floats(0.001, 1e6)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.from_regex(r"[A-Z][A-Z0-9]{0,5}", fullmatch=True).map(lambda name: f"MY_{name}")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
JOBS = st.builds(
    sdk.Job,
    st.just("train.py"),
    args=st.none() | st.lists(TEXT | st.integers(0, 9), max_size=3) | st.dictionaries(TEXT, JSON, max_size=3),
    env=st.dictionaries(NAMES, st.just("text") | st.just(sdk.FromCaller()), max_size=3),
    resources=st.builds(
        sdk.Resources,
        workers=st.integers(1, 5),
        ps=st.integers(0, 2),
        evaluator=st.booleans(),
        accelerator=st.sampled_from([row.name for row in accelerators.ROWS]),
    ),
    code=st.builds(
        sdk.Code,
        include=st.lists(TEXT, max_size=2),
        requirements=st.just("auto") | st.lists(st.just("numpy>=1"), max_size=2),
    ),
    limits=st.builds(
        sdk.Limits, timeout_s=st.none() | SECONDS, grace_s=SECONDS, max_steps=st.none() | st.integers(1, 9)
    ),
    retry=st.builds(sdk.Retry, preemptions=st.none() | st.integers(0, 5)),
    checkpoints=st.builds(sdk.Checkpoints, every_s=st.none() | SECONDS, best=st.none() | st.just("min:val_loss")),
    model=st.none() | st.just("digits"),
    warm_start=st.none() | st.sampled_from(["champion", "last"]),
    gate=st.just(sdk.Gate())
    | st.builds(
        sdk.Gate,
        evaluate=st.just("quality:measure"),
        data=st.none() | st.just("test"),
        metric=st.sampled_from(["accuracy", "min:cost"]),
        min_gain=st.sampled_from(["0", "1%", 0.01]),
        guards=st.lists(st.sampled_from(["accuracy >= 0.9", "loss <= champion * 1.05"]), max_size=2),
        ask_below=st.none() | st.just("2"),
    ),
)
TARGETS = st.builds(sdk.Local, cluster=st.sampled_from(["chief", "workers"])) | st.builds(
    sdk.Vertex,
    project=st.none() | st.just("my-project"),
    regions=st.lists(st.sampled_from(["us-central1", "europe-west4"]), min_size=1, max_size=2),
    keeper=st.booleans() | st.just("2d"),
    labels=st.dictionaries(NAMES, TEXT, max_size=2),
    raw=st.dictionaries(TEXT, JSON, max_size=2),
)
DRILLS = st.none() | st.builds(
    Drill, seed=st.integers(0, 9), kills=st.lists(st.just(Kill(task="chief-0", point="step", number=3))).map(tuple)
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    job, target, made = draw(JOBS), draw(TARGETS), Plan.from_json((FINISHED_RUN / "plan.json").read_text(), "plan.json")
    files = (PackedFile("empty/", 0, ""), PackedFile("train.py", 3, "b" * 64, executable=True))
    kwargs = job.args if isinstance(job.args, dict) else {}
    return replace(
        made,
        backend="local" if isinstance(target, sdk.Local) else "vertex",
        target=target,
        job=job,
        code=replace(made.code, argv=job.argv(), kwargs=kwargs, files=files, left_out=["data (too large)"]),
        tasks=[task.name for task in cluster.members(job.resources, target)],
        facts=replace(made.facts, dropped=("HOME",), online=draw(st.dictionaries(TEXT, JSON, max_size=2))),
        findings=(Finding("note", "A note."),),
        drill=draw(DRILLS),
    )


@settings(max_examples=60, deadline=None)
@given(plans())
def test_a_plan_and_its_payload_come_back_from_their_json(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json(), "plan.json")
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert Payload.from_json(again.payload(3).to_json()) == plan.payload(3)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("job", "resources", "workers"), "2"),
        (("job", "resources", "evaluator"), 1),
        (("job", "checkpoints", "on_busy"), "wait"),
        (("backend_options", "network"), 3),
        (("files", 0), ["train.py", "3", "b" * 64, False]),
        (("facts", "cpus"), 1.5),
        (("tasks",), "chief-0"),
    ],
)
def test_a_plan_with_a_field_of_another_type_is_damaged(write: Any, path: tuple[Any, ...], value: object) -> None:
    write("train.py", "print(1)")
    data = json.loads(sdk.plan("train.py").to_json())
    holder = data
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = value
    with pytest.raises(sdk.CorruptRunError, match=path[0] if path[0] != "backend_options" else "network"):
        Plan.from_json(json.dumps(data), "plan.json")


def test_a_value_knows_which_of_its_fields_were_given() -> None:
    job = sdk.Job("train.py", resources={"workers": 2})
    assert given_fields(job).keys() == {"entry", "resources"}
    assert given_fields(job.resources) == {"workers": 2}
    assert given_fields(sdk.Limits()) == {}


@pytest.mark.process
def test_values_are_read_from_json_and_packed_into_tasks_without_pydantic() -> None:
    lines = (
        "import sys; sys.modules['pydantic'] = None",
        "import sdk.runtime.bootstrap, sdk.runtime.context, sdk.checkpoint.manager, sdk.backends.local.supervisor",
        "from sdk.job import job, policies, wire",
        "made = wire.decode(job.Job, {'entry': 'train.py', 'resources': {'workers': 3}, 'env': {'A': {'from_caller': True}}})",
        "print(made.resources.workers, made.copied, made.code.keras, policies.Limits().grace_s)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=REPO)
    assert done.stdout == "3 ['A'] auto 5.0\n", done.stderr


def test_decoding_ignores_fields_of_a_later_podlift_and_names_missing_ones() -> None:
    assert decode(sdk.Retry, {"user_errors": 2, "from_the_future": 1}) == sdk.Retry(user_errors=2)
    with pytest.raises(TypeError, match=r"Job\.entry is missing"):
        decode(sdk.Job, {})


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (float, 10**400, "too large"),
        (float | None, -(10**400), "int|too large"),
        (tuple[str, int], ["a"], "1 items, not 2"),
    ],
)
def test_a_value_that_fits_no_python_type_is_a_type_error_like_every_other(kind, value, problem) -> None:
    with pytest.raises(TypeError, match=problem):
        decode(make_dataclass("Made", [("value", kind)]), {"value": value})


def test_only_these_files_make_a_plan_out_of_another() -> None:
    copied = re.compile(r"\breplace\(\s*(?:\w+\.)*_?(?:plan|made|template)\b(?!\.\w)\s*,")
    assert len(SOURCES) > 200
    assert [path for path in SOURCES if "raise AssertionError" in path.read_text()] == [], "no state is impossible"
    found = sorted(path.relative_to(REPO / "sdk").as_posix() for path in SOURCES if copied.search(path.read_text()))
    assert found == [
        "backends/vertex/job/request.py",  # one location of several
        "backends/vertex/job/start_run.py",  # the time that is left for the next job
        "backends/vertex/schedule/cloud_scheduler.py",  # the trigger brings the keeper
        "drill/goodput.py",
        "drill/runs.py",  # the other trainings of a drill
        "launch.py",  # a resume with other limits or another Python
        "planning/decide.py",  # the plan with its findings
        "planning/diff.py",  # without random values
        "planning/pack.py",  # a file that changed before the archive was written
        "planning/prepare.py",  # with the trial of the gate among the findings
        "planning/roots.py",  # the view of this machine on a run elsewhere
        "schedules/creation.py",  # the template of the firings
        "schedules/runs.py",  # a firing
        "sweeps/creation.py",  # the template of the trials
    ]
