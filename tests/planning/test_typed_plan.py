"""The plan is typed, survives its JSON, is compared with others, and names GPUs; its reader needs only the standard library."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import make_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FINISHED_RUN, REPO

import sdk
from sdk import backends
from sdk.backends.local.checks import of_local
from sdk.checks import Facts, errors
from sdk.hardware import accelerators
from sdk.job import cluster
from sdk.job.findings import Finding
from sdk.job.payload import Drill, Kill, Payload
from sdk.job.plan import PackedFile, Plan
from sdk.job.values import given_fields
from sdk.job.wire import decode
from sdk.planning import diff
from sdk.planning.diff import Change
from sdk.process import task_environment

SOURCES = [path for path in (REPO / "sdk").rglob("*.py") if "emulator" not in path.parts]
SECONDS = st.floats(0.001, 1e6)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.from_regex(r"[A-Z][A-Z0-9]{0,5}", fullmatch=True).map(lambda name: f"MY_{name}")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
HARDWARE = st.sampled_from([row.name for row in accelerators.ROWS])
REQUIREMENTS = st.just("auto") | st.lists(st.just("numpy>=1"), max_size=2)
GATES = st.just(sdk.Gate()) | st.builds(
    sdk.Gate,
    evaluate=st.just("quality:measure"),
    data=st.none() | st.just("test"),
    metric=st.sampled_from(["accuracy", "min:cost"]),
    min_gain=st.sampled_from(["0", "1%", 0.01]),
    guards=st.lists(st.sampled_from(["accuracy >= 0.9", "loss <= champion * 1.05"]), max_size=2),
    ask_below=st.none() | st.just("2"),
)
JOBS = st.builds(
    sdk.Job,
    st.just("train.py"),
    args=st.none() | st.lists(TEXT | st.integers(0, 9), max_size=3) | st.dictionaries(TEXT, JSON, max_size=3),
    env=st.dictionaries(NAMES, st.just("text") | st.just(sdk.FromCaller()), max_size=3),
    resources=st.builds(
        sdk.Resources, workers=st.integers(1, 5), ps=st.integers(0, 2), evaluator=st.booleans(), accelerator=HARDWARE
    ),
    code=st.builds(sdk.Code, include=st.lists(TEXT, max_size=2), requirements=REQUIREMENTS),
    limits=st.builds(
        sdk.Limits, timeout_s=st.none() | SECONDS, grace_s=SECONDS, max_steps=st.none() | st.integers(1, 9)
    ),
    retry=st.builds(sdk.Retry, preemptions=st.none() | st.integers(0, 5)),
    checkpoints=st.builds(sdk.Checkpoints, every_s=st.none() | SECONDS, best=st.none() | st.just("min:val_loss")),
    model=st.none() | st.just("digits"),
    warm_start=st.none() | st.sampled_from(["champion", "last"]),
    gate=GATES,
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


def compared(first: Plan, second: Plan) -> list[Change]:
    bodies = [backends.load(plan.backend).render(diff.anonymous(plan)).body for plan in (first, second)]
    return diff.compare(first, second, (bodies[0], bodies[1]))


def lines(first: Plan, second: Plan) -> list[str]:
    return [f"{change.section} {change}" for change in compared(first, second)]


def test_two_plans_of_the_same_job_do_not_differ_although_their_run_ids_do(write: Any) -> None:
    write("train.py", "print(1)")
    for more in ({}, {"backend": "vertex"}):
        first, second = (sdk.plan("train.py", workers=2, **more) for _ in range(2))
        assert first.run_id != second.run_id
        assert compared(first, second) == []


def test_files_that_were_added_changed_and_removed_are_named(write: Any) -> None:
    for name in ("train.py", "old.py", "pyproject.toml"):
        write(name)
    first = sdk.plan("train.py")
    write("train.py", "print(2)")
    write("new.py")
    Path("old.py").unlink()
    assert lines(first, sdk.plan("train.py")) == ["code + new.py", "code - old.py", "code ~ train.py"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"workers": 2}, {"workers": 3}, ["job ~ resources.workers: 2 -> 3", "tasks + worker-1"]),
        ({"args": ["a"]}, {"args": ["a", "b"]}, ['entry + argv.1: "b"', 'job + args.1: "b"']),
        ({"env": {"A": "1", "B": "2"}}, {"env": {"B": "2"}}, ['job - env.A: "1"']),
        ({"env": {"A": "1"}}, {"env": {"A": sdk.FromCaller()}}, ['job ~ env.A: "1" -> {"from_caller": true}']),
        ({"name": "one"}, {"name": "two"}, ['target ~ name: "one" -> "two"']),
        ({"timeout": None}, {"timeout": 60.0}, ["job ~ limits.timeout_s: null -> 60.0"]),
    ],
)
def test_the_requested_settings_are_compared_value_by_value(write, monkeypatch, before, after, said) -> None:
    write("train.py", "print(1)")
    monkeypatch.setenv("A", "mine")
    changes = lines(*(sdk.plan("train.py", **given) for given in (before, after)))
    assert set(said) <= set(changes), changes


def test_the_requests_are_compared_and_so_are_price_and_target(write: Any) -> None:
    write("train.py", "print(1)")
    first = sdk.plan("train.py", backend=sdk.Vertex(project="project-one"))
    second = sdk.plan("train.py", backend=sdk.Vertex(project="project-two", image="img"), accelerator="l4")
    said = lines(first, second)
    for part in (
        'job ~ resources.accelerator: "cpu" -> "l4"',
        'target ~ project: "project-one" -> "project-two"',
        'request ~ jobSpec.workerPoolSpecs.0.machineSpec.machineType: "n1-standard-4" -> "g2-standard-4"',
        'request + jobSpec.workerPoolSpecs.0.machineSpec.acceleratorType: "NVIDIA_L4"',
        'request ~ jobSpec.workerPoolSpecs.0.containerSpec.imageUri: "<image>" -> "img"',
    ):
        assert part in said, said
    assert any(line.startswith("price - price: ") for line in said)
    assert any(line.startswith("findings - warning: No container image") for line in said)


def test_variables_of_a_request_are_told_apart_by_their_names(write: Any) -> None:
    write("train.py", "print(1)")
    first, second = (
        sdk.plan(sdk.Job("train.py", env=env), backend="vertex") for env in ({"Z": "1"}, {"A": "0", "Z": "2"})
    )
    env = "request {} jobSpec.workerPoolSpecs.0.containerSpec.env."
    said = [line for line in lines(first, second) if line.startswith("request")]
    assert sorted(said) == sorted([f'{env.format("+")}A: "0"', f'{env.format("~")}Z: "1" -> "2"'])


def test_a_program_reads_the_sections_and_whether_there_are_any(write: Any) -> None:
    write("train.py", "print(1)")
    first, second = sdk.plan("train.py", workers=1), sdk.plan("train.py", workers=2)
    changes = json.loads(json.dumps(diff.as_json(compared(first, second))))
    assert changes["same"] is False
    assert changes["job"] == [{"path": "resources.workers", "before": 1, "after": 2, "kind": "changed"}]
    assert changes["tasks"] == [{"path": "worker-0", "before": None, "after": None, "kind": "added"}]
    assert diff.as_json([]) == {"same": True}


FACTS = Facts(
    python="3.11.7", executable="python", tensorflow="2.21.0", keras="3.15.1", tf_keras=None, cpus=2, isolation=None
)


@pytest.fixture
def script(write) -> str:
    write("train.py", "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\n")
    return "train.py"


def visible(plan: sdk.Plan) -> list[str]:
    addresses = dict.fromkeys(plan.tasks, "localhost:1")
    environments = (task_environment.environment(plan, 1, task, addresses, "/tmp/t") for task in plan.members)
    return [variables["CUDA_VISIBLE_DEVICES"] for variables in environments]


def findings(job: sdk.Job, facts: Facts, target: sdk.Local) -> list[str]:
    return [finding.message for finding in of_local(job, facts, target=target)]


def job(**resources: object) -> sdk.Job:
    return sdk.Job("train.py", resources=sdk.Resources(**resources))  # type: ignore[arg-type]


def test_a_plan_names_the_stand_in_and_the_division_of_a_batch_and_cpus_need_neither(script: str) -> None:
    plan = sdk.plan(script, accelerator="a100:4", workers=2)
    text = str(plan)
    assert "2 x a100:4 (a stand-in: 4 logical CPU devices): chief-0, worker-0" in text
    divided = "256 examples in a batch are 128 for each task and 32 on each replica. Use multiples of 8"
    assert f"8 with a synchronous strategy: {divided}" in text
    assert "40 GiB for each replica; here they share" in text
    assert (visible(plan), plan.fresh) == (["-1,-1", "-1,-1"], ""), "tasks are forked"
    alone = sdk.plan(script)
    assert visible(alone) == ["-1"]
    assert "replicas" not in str(alone), "one needs no line"


def test_a_plan_for_the_cloud_has_its_gpus(script: str) -> None:
    text = str(sdk.plan(script, accelerator="l4:2", backend=sdk.Vertex(project="my-project", bucket="my-bucket")))
    assert "1 x l4:2: chief-0" in text
    assert "2 with a synchronous strategy: 64 examples in a batch are 32 on each." in text
    assert "24 GiB for each replica\n" in text


def test_real_gpus_are_divided_among_the_tasks_and_parameter_servers_have_none(write) -> None:
    write("train.py", "import tensorflow as tf\nprint(tf.distribute.ParameterServerStrategy)\n")
    plan = sdk.plan("train.py", accelerator="l4:2", workers=2, ps=1)
    real = replace(plan, target=sdk.Local(gpus="real"))
    assert real.target.real_gpus
    gpus = dict(zip(plan.tasks, visible(real), strict=True))
    assert gpus == {"chief-0": "0,1", "worker-0": "2,3", "ps-0": "-1"}


def test_real_gpus_are_used_only_when_asked_and_if_there_are_enough() -> None:
    four = replace(FACTS, gpus=4)
    unused = "The 4 GPUs of this machine stay unused: local_gpus='real' uses them."
    assert unused in findings(job(accelerator="l4:2"), four, sdk.Local())
    used = "Each task has 2 GPUs of this machine, of the type that is here."
    assert used in findings(job(accelerator="l4:2", workers=2), four, sdk.Local(gpus="real"))
    for asked, said in (
        ({"accelerator": "l4:4", "workers": 2}, "needs 8 GPUs of this machine, 4 for each task. Received: 4 GPUs"),
        ({}, "is for an accelerator with GPUs. Received: accelerator='cpu'"),
    ):
        refused = errors(of_local(job(**asked), four, target=sdk.Local(gpus="real")))
        assert refused == [f"local_gpus='real' {said}. Nearest: local_gpus='stand-in'."]


def test_many_replicas_on_few_cpus_are_a_warning() -> None:
    slow = "16 replicas share 2 CPUs: each step takes about 8 times as long."
    assert slow in findings(job(accelerator="h200:8", workers=2), FACTS, sdk.Local())
    assert slow not in findings(job(accelerator="h200:8"), FACTS, sdk.Local())


def test_a_variable_of_the_shell_asks_for_fewer_replicas(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODLIFT_GPU_REPLICAS", "2")
    notes = [finding.message for finding in sdk.plan(script, accelerator="a100:8").findings]
    assert "PODLIFT_GPU_REPLICAS=2: each task has 2 replicas instead of 8." in notes
    monkeypatch.setenv("PODLIFT_GPU_REPLICAS", "9")
    with pytest.raises(sdk.InputError, match=r"a100:8: 1 to 8\. Received: '9'\. Nearest: PODLIFT_GPU_REPLICAS=8"):
        sdk.plan(script, accelerator="a100:8")
