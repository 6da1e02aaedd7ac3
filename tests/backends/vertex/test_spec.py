"""The request of a custom job: every row of the hardware table, whole, and read by Google's own message."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support import GOLDEN_FILES

import sdk
from sdk.backends.vertex.backend import VertexBackend
from sdk.backends.vertex.job import request
from sdk.hardware import accelerators
from sdk.job import cluster
from sdk.job.layout import RunPaths
from sdk.job.plan import Plan
from sdk.packaging.audit.environment import Preload
from sdk.packaging.runtime_archive import loader

# `GOLDEN=write pytest tests/backends/vertex/test_spec.py` writes it anew: read the difference before it is committed.
GOLDEN = GOLDEN_FILES / "vertex" / "bodies.json"
PLACE: dict[str, Any] = {
    "project": "my-project",
    "bucket": "my-bucket",
    "image": "us-docker.pkg.dev/my-project/train/tf:2.19",
}
ACCOUNT, NETWORK = "train@my-project.iam.gserviceaccount.com", "projects/12345/global/networks/vpc"
KEY = "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"
ROWS = [row for row in accelerators.ROWS if "vertex" in row.backends and not row.refused]
# Cases that no row shows: name -> a Job's values, and the other settings of the Vertex.
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one task": ({}, {}),
    "parameter servers and no workers": ({"resources": {"ps": 2}}, {}),
    "every pool": ({"resources": {"workers": 3, "ps": 2, "evaluator": True, "accelerator": "l4"}}, {}),
    "a chief and an evaluator": ({"resources": {"evaluator": True}}, {}),
    "spot": ({"resources": {"accelerator": "l4"}, "limits": {"timeout_s": 3600.5}}, {"provisioning": "spot"}),
    "flex": ({"resources": {"accelerator": "a100:8"}, "limits": {"timeout_s": 86400}}, {"provisioning": "flex"}),
    "machine and disk": ({}, {"machine": "n2-standard-16", "disk_gb": 200}),
    "variables": ({"env": {"PRICE": "$(HOME) costs $5", "TWO": "$$", "TOKEN": sdk.FromCaller()}}, {}),
    "legacy keras": ({"code": {"keras": "legacy"}}, {}),
    "service account and labels": ({}, {"service_account": ACCOUNT, "labels": {"team": "vision"}}),
    "raw": (
        {"resources": {"workers": 2}},
        {
            "raw": {
                "encryptionSpec": {"kmsKeyName": KEY},
                "labels": {"podlift-project": None},
                "jobSpec": {
                    "network": NETWORK,
                    "workerPoolSpecs": {"1": {"diskSpec": {"bootDiskType": "pd-standard"}}},
                },
            }
        },
    ),
    "a peered network and a key": ({}, {"network": NETWORK, "kms_key": KEY}),
    "a network attachment, a TensorBoard and a persistent resource": (
        {"resources": {"accelerator": "l4"}},
        {
            "network": "projects/p/regions/us-central1/networkAttachments/a",
            "tensorboard": "projects/p/locations/us-central1/tensorboards/1",
            "persistent_resource": "warm",
            "service_account": ACCOUNT,
        },
    ),
}  # fmt: skip
_GROUPS = {"resources": sdk.Resources, "limits": sdk.Limits, "code": sdk.Code}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Plan:
    """A plan for Vertex AI; each test puts its own job into it."""
    folder = tmp_path_factory.mktemp("digits")
    (folder / "train.py").write_text("print(1)\n")
    with pytest.MonkeyPatch.context() as patched:
        for name in [name for name in os.environ if name.startswith("PODLIFT_")]:
            patched.delenv(name)
        made = sdk.plan(folder / "train.py", backend=sdk.Vertex(**PLACE), name="digits")
    return replace(made, run_id="digits-aaaaaa", code=replace(made.code, project="/home/me/digits"))


def planned(base: Plan, job: Mapping[str, Any], place: Mapping[str, Any]) -> Plan:
    made = sdk.Job("train.py", **{k: _GROUPS[k](**v) if k in _GROUPS else v for k, v in job.items()})
    target = sdk.Vertex(**PLACE, **place)
    names = [task.name for task in cluster.members(made.resources, target)]
    return replace(base, job=made, tasks=names, target=target)


def of_row(base: Plan, row: accelerators.Accelerator) -> Plan:
    workers = 1 if row.family == "tpu" else 2
    any_reservation = {"machineSpec": {"reservationAffinity": {"reservationAffinityType": "ANY_RESERVATION"}}}
    reserved = {"jobSpec": {"workerPoolSpecs": {str(pool): any_reservation for pool in range(workers)}}}
    raw = {"raw": reserved} if row.reservation else {}
    return planned(base, {"resources": {"workers": workers, "accelerator": row.name}}, raw)


@pytest.fixture(scope="module")
def bodies(base) -> dict[str, dict[str, Any]]:
    """The request of each row and of each shape, with a word in the place of the loader's text."""
    rows = {f"row {row.name}": request.render(of_row(base, row)) for row in ROWS}
    shapes = {name: request.render(planned(base, *shape)) for name, shape in SHAPES.items()}
    return {
        name: json.loads(json.dumps(body).replace(json.dumps(loader()), '"<loader>"'))
        for name, body in {**rows, **shapes}.items()
    }


def container(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container of the first task; with its `variables` by name."""
    found = body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    return {**found, "variables": {each["name"]: each["value"] for each in found["env"]}}


def test_a_place_changes_the_machines_the_strategy_the_address_and_the_launch_spec(base) -> None:
    wanted = "us-central1:spot,us-west1:standard:v5e-8"
    plan = planned(base, {"resources": {"accelerator": "l4:2"}}, {"regions": wanted})
    first, second = sdk.Vertex.of(plan.target).locations_for(plan.job.resources)
    plain = planned(base, {"resources": {"accelerator": "l4:2"}}, {"provisioning": "spot"})
    assert request.render(plan) == request.render(plan, location=first) == request.render(plain)
    assert request.url(plan, second).startswith("https://us-west1-aiplatform.googleapis.com/v1/projects/my-project/")
    tpu = planned(base, {"resources": {"accelerator": "v5e-8"}}, {"regions": "us-west1"})
    moved = json.dumps(request.render(plan, number=2, location=second))
    alone = json.dumps(request.render(tpu, number=2))
    key = RunPaths("podlift/runs/digits-aaaaaa")
    assert moved.replace(key.launch_spec(2, 1), key.launch_spec(2, 0)) == alone, "but for its own launch spec"
    specs = [request.launch_spec(plan, 1, "a" * 64, place) for place in (first, second)]
    assert [spec["payload"]["tpu"] for spec in specs] == ["", "v5e-8"]  # type: ignore[index]
    assert [spec["payload"]["replicas"] for spec in specs] == [None, [8, 2]]  # type: ignore[index]
    assert specs[1]["tensorflow"] == request.launch_spec(tpu, 1, "a" * 64)["tensorflow"] != specs[0]["tensorflow"]


@pytest.mark.parametrize(
    ("place", "bucket_region", "expected"),
    [
        ("us-central1", "", "gs://my-bucket/podlift"),  # unknown: Vertex AI tells
        ("us-central1", "us-central1", "gs://my-bucket/podlift"),
        ("us-east1", "us-central1", None),
    ],
)
def test_the_output_directory_is_in_the_region_of_the_place_or_left_out(base, place, bucket_region, expected) -> None:
    plan = planned(base, {}, {"regions": "us-central1,us-east1"})
    there = next(each for each in sdk.Vertex.of(plan.target).locations_for(plan.job.resources) if each.region == place)
    body = request.render(plan, location=there, bucket_region=bucket_region)
    prefix = {"outputUriPrefix": f"{expected}/runs/{plan.run_id}"}
    assert body["jobSpec"].get("baseOutputDirectory") == (prefix if expected else None)
    assert container(body)["variables"]["PODLIFT_RUN"] == plan.url


@pytest.fixture(scope="module")
def custom_job() -> Any:
    """Google's own message; importing it takes a second."""
    from google.cloud.aiplatform_v1 import CustomJob

    return CustomJob


def test_the_requests_are_the_ones_that_were_reviewed(bodies) -> None:
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(json.dumps(bodies, indent=1, sort_keys=True) + "\n")
    assert bodies == json.loads(GOLDEN.read_text())


def test_google_reads_every_request_and_nothing_of_it_is_lost(bodies, custom_job) -> None:
    for name, body in bodies.items():
        read = custom_job.from_json(json.dumps(body), ignore_unknown_fields=False)
        options = {"use_integers_for_enums": False, "always_print_fields_with_no_presence": False}
        again = json.loads(custom_job.to_json(read, **options))
        # Messages without a content are not told apart from missing ones, except in a list, where the place counts.
        assert len(read.job_spec.worker_pool_specs) == len(body["jobSpec"]["workerPoolSpecs"]), name
        for written, pool in zip(body["jobSpec"]["workerPoolSpecs"], again["jobSpec"]["workerPoolSpecs"], strict=True):
            assert written == pool, name


def test_the_command_is_the_loader_and_its_arguments_name_its_downloads(base) -> None:
    stage, order = "a" * 64, "b" * 64
    body = request.render(planned(base, {}, {}), number=2, entrypoint=stage, spec_digest=order)
    found = container(body)
    assert found["command"] == ["python3", "-c", loader()]
    keys = [f"podlift/entrypoints/{stage}.py", "podlift/runs/digits-aaaaaa/jobs/0002.launch_spec.json"]
    assert found["args"] == ["my-bucket", keys[0], stage, keys[1], order]
    assert body["labels"]["podlift-job"] == "2"
    # Kubernetes expands $(NAME) in commands and arguments as it does in variables.
    assert "$" not in loader() + "".join(found["args"])


def command_on(base: Plan, accelerator: str) -> list[str]:
    return container(request.render(planned(base, {"resources": {"accelerator": accelerator}}, {})))["command"]


def test_machines_with_rdma_have_their_script_for_nccl_read_first_and_others_do_not(base) -> None:
    assert {row.name for row in ROWS if row.script} == {"h200:8", "b200:8", "gb200:4"}
    for row in ROWS:
        command = command_on(base, row.name)
        assert command[-3:] == ["python3", "-c", loader()]
        assert command[:-3] == [] or command[3] == "/usr/local/gib/scripts/set_nccl_env.sh"
        # No word of the user's stands in the text that the shell reads.
        assert "$(" not in "".join(command[:-3])


@pytest.mark.process
@pytest.mark.parametrize("there", [True, False])
def test_variables_of_the_machines_script_and_unchanged_arguments_reach_the_program(base, tmp_path, there) -> None:
    command, script = command_on(base, "h200:8"), tmp_path / "set nccl.sh"
    if there:
        script.write_text('test $# = 0 && export NCCL_NET=gIB PWD_OF="$PWD"\n')
    shown = "import os, sys; print(os.environ.get('NCCL_NET'), sys.argv[1:])"
    words = [*command[:3], str(script), sys.executable, "-c", shown, "a b", "$HOME", "*"]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert ended.stdout == f"{'gIB' if there else None} ['a b', '$HOME', '*']\n"
    assert ended.stderr == ("" if there else f"podlift: no {script} on this machine: NCCL runs without it\n")


def test_the_callers_own_values_are_in_the_request_that_is_sent_and_in_no_other(base) -> None:
    plan = planned(base, {"env": {"TOKEN": sdk.FromCaller(), "PLAIN": "x"}}, {})
    assert container(request.render(plan))["variables"]["TOKEN"] == "***"
    sent = container(request.render(plan, copied={"TOKEN": "s$(HOME)"}))["variables"]
    assert (sent["TOKEN"], sent["PLAIN"]) == ("s$$(HOME)", "x")
    assert (sent["PODLIFT_RUN"], sent["PODLIFT_TASKS"]) == (plan.url, "chief-0")
    assert plan.job.copied == ["TOKEN"]


def kubernetes(text: str) -> str:
    """A variable's value in a container: `$$` is `$`, and `$(NAME)` the value of NAME."""
    return re.sub(r"\$(\$|\(([^)]*)\))", lambda found: "$" if found[1] == "$" else f"<{found[2]}>", text)


def test_a_missing_setting_is_shown_and_refused_at_the_start(base) -> None:
    bare = replace(base, root="gs://<bucket>/podlift", target=sdk.Vertex())
    body, backend = request.render(bare), VertexBackend()
    assert container(body)["imageUri"] == "<image>"
    assert body["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"] == "gs://<bucket>/podlift/runs/digits-aaaaaa"
    assert "/projects/<project>/locations/us-central1/" in backend.render(bare).url
    for starting, level in ((False, "warning"), (True, "error")):
        found = backend.review(bare, Preload(), starting=starting)[:3]
        assert [finding.level for finding in found] == [level] * 3
        said = " ".join(finding.message for finding in found)
        for part in ("project", "container image", "bucket", "PODLIFT_VERTEX_PROJECT", "--vertex-image"):
            assert part in said
    assert [each for each in backend.review(base, Preload(), starting=True) if each.level != "note"] == []


def test_the_order_names_everything_by_key_and_digest_and_holds_no_secret(base) -> None:
    hardware = {"workers": 2, "accelerator": "v5e-4"}
    job = {"env": {"TOKEN": sdk.FromCaller()}, "resources": hardware, "limits": {"max_steps": 7}}
    found = request.launch_spec(planned(base, job, {}), 1, "c" * 64)
    assert json.loads(json.dumps(found)) == found
    assert found["bundle"] == {"key": f"podlift/bundles/{base.code.digest}.tar", "sha256": base.code.digest}
    assert found["runtime"] == {"key": f"podlift/runtime/{'c' * 64}.tar", "sha256": "c" * 64}
    assert found["tensorflow"] == ["2.16", "2.20"], "tensorflow-tpu stops there"
    assert found["run"] == base.url
    payload = found["payload"]
    assert payload["copied"] == ["TOKEN"]
    assert (payload["attempt"], payload["bundle"], payload["run_url"], payload["store"]) == (0, "", "", "")
    assert (payload["tasks"], payload["limits"]["max_steps"]) == (["chief-0", "worker-0"], 7)


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
texts = st.text(max_size=30)
words = st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=20)


HARDWARE = {"accelerator": st.sampled_from([row.name for row in ROWS]), "evaluator": st.booleans()}
JOBS = st.builds(
    dict,
    env=st.dictionaries(names, texts, max_size=4),
    args=st.lists(texts, max_size=3),
    resources=st.builds(dict, workers=st.integers(1, 4), ps=st.integers(0, 2), **HARDWARE),
    limits=st.builds(dict, timeout_s=st.none() | st.floats(1e-3, 1e9)),
    code=st.builds(dict, keras=st.sampled_from(["auto", "legacy"])),
)
PLACES = st.builds(
    dict,
    regions=st.lists(st.sampled_from(["us-central1", "europe-west4"]), min_size=1, max_size=2).map(tuple),
    service_account=st.none() | texts.filter(bool),
    labels=st.dictionaries(words, words, max_size=3),
    provisioning=st.sampled_from(["standard", "spot", "flex"]),
    disk_gb=st.integers(1, 100_000),
    machine=st.none() | words,
)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(job=JOBS, place=PLACES)
def test_no_job_renders_a_request_that_google_cannot_read(base, custom_job, job, place) -> None:
    try:
        plan = planned(base, job, place)
    except sdk.InputError:
        assume(False)
        raise
    body = request.render(plan)
    read = custom_job.from_json(json.dumps(body), ignore_unknown_fields=False)
    assert [pool.replica_count for pool in read.job_spec.worker_pool_specs] == [
        int(pool.get("replicaCount", 0)) for pool in body["jobSpec"]["workerPoolSpecs"]
    ]
    expected = {k: v for k, v in plan.job.env.items() if not k.startswith("PODLIFT")}
    variables = read.job_spec.worker_pool_specs[0].container_spec.env
    sent = {variable.name: kubernetes(variable.value) for variable in variables}
    assert {name: sent[name] for name in expected} == expected


def test_a_written_plan_is_read_with_this_podlifts_knowledge_of_its_place(base) -> None:
    written = json.loads(base.to_json())
    assert request.render(Plan.from_json(json.dumps(written), "plan.json")) == request.render(base)
    # A later podlift may know something else.
    written["backend_options"]["zones"] = ["a"]
    assert request.render(Plan.from_json(json.dumps(written), "plan.json")) == request.render(base)
    for regions, wrong in (([], "must name one at least"), (["us-east1:spto"], "unknown provisioning")):
        written["backend_options"]["regions"] = regions
        with pytest.raises(sdk.CorruptRunError, match=wrong):
            Plan.from_json(json.dumps(written), "plan.json")


NEEDED = ("account.locations", "account.offline", "account.prices", "images.recipe", "job.body", "job.request")


@pytest.mark.process
def test_the_command_that_plans_sends_no_request_and_loads_only_its_modules(tmp_path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow")
    rooms = tuple(f"sdk.backends.vertex.{room}." for room in ("account", "images", "job", "schedule", "wait"))
    slow = ("tensorflow", "keras", "google.", "grpc", "requests", "rich", "numpy", *rooms)
    code = (
        "import socket, sys; bare = set(sys.modules)\n"
        "def refuse(*args, **kwargs): raise AssertionError(args)\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from sdk.cli.app import run\n"
        "assert run(['plan', 'train.py', '--backend', 'vertex']) == 0\n"
        f"print(sorted(m for m in set(sys.modules) - bare if m.startswith({slow!r})), file=sys.stderr)"
    )
    env = {"PYTHONPATH": str(Path(sdk.__file__).parents[1]), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    words = [sys.executable, "-c", code]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
    assert shown.stderr.strip() == str([f"sdk.backends.vertex.{name}" for name in NEEDED])
