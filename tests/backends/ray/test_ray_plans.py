"""Plans for a Ray cluster: the whole request, and the refusals before anything is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import REPO

import sdk
from sdk import backends
from sdk.errors import InputError
from sdk.packaging.runtime_archive import loader

from .fake_ray import FakeRay

GOLDEN = REPO / "tests" / "golden" / "ray" / "bodies.json"
STRICT = {"placement": {"strategy": "STRICT_SPREAD"}}
PATCH = {"metadata": {"team": "vision"}, "entrypoint_num_cpus": 1.0}
INSTALLED = {"pip": ["scikit-learn"], "env_vars": {"A": "1"}}
CASES = {
    "two workers": {"workers": 2},
    "two l4 each": {"workers": 2, "accelerator": "l4:2", "ray_raw": STRICT, "ray_pending_timeout": "2m"},
    "servers and an evaluator": {"workers": 2, "ps": 1, "evaluator": True, "accelerator": "t4"},
    "everything": {
        "env": {"LEVEL": "3", "TOKEN_OF_MINE": sdk.FromCaller()},
        "ray_raw": {"placement": {"tasks": {"chief-0": {"CPU": 4}}}, "job": {**PATCH, "runtime_env": INSTALLED}},
    },
}
MISSPELT = {"placement": {"strategy": "STRICT_SPRED"}}
INDEX = {"job": {"runtime_env": {"pip": ["-i https://me:s3cr3t@h/x"]}}}
CREDENTIAL = {"job": {"runtime_env": {"env_vars": {"API_KEY": "abcdefgh"}}}}


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN_OF_MINE", "hidden-from-plans")


def bodies() -> dict[str, object]:
    found = {}
    for name, settings in CASES.items():
        plan = sdk.plan("train.py", backend="ray", root="gs://bucket/p", ray_address="http://head:8265", **settings)
        text = json.dumps(backends.load("ray").render(plan).body).replace(plan.run_id, "RUN")
        found[name] = json.loads(text.replace(json.dumps(loader())[1:-1], "LOADER"))
    return found


@pytest.mark.shows("`--backend ray` runs the same plan")
def test_the_whole_request_is_the_one_that_was_looked_at() -> None:
    assert bodies() == json.loads(GOLDEN.read_text())


def test_a_value_that_is_copied_from_here_is_in_no_plan() -> None:
    plan = sdk.plan("train.py", backend="ray", root="gs://bucket/p", **CASES["everything"])
    assert "hidden-from-plans" not in plan.to_json() + str(plan) + json.dumps(backends.load("ray").render(plan).body)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ray_address": "ray://head:10001"}, "protocol of Ray Client.*http://head:8265"),
        ({"ray_address": "head:8265"}, "URL of the dashboard, such as http://HOST:8265"),
        ({"ray_address": "http://me:secret@head:8265"}, "must not hold a user or a password"),
        ({"ray_headers": {"Authorization": "Bearer abc"}}, "looks like a credential.*RAY_TOKEN"),
        ({"ray_headers": {"Bad name": "x"}}, "not a header of HTTP"),
        ({"ray_pending_timeout": 0}, "ray_pending_timeout"),
        ({"accelerator": "v5e-8"}, "trains on CPUs or GPUs.*Nearest: accelerator='cpu'"),
        ({"ray_raw": INDEX}, "pip looks like a URL with a password"),
        ({"ray_raw": MISSPELT}, "Unknown placement.strategy in ray_raw.*'STRICT_SPRED'. Did you mean 'STRICT_SPREAD'"),
        ({"ray_raw": CREDENTIAL}, "API_KEY looks like a credential.*--env API_KEY"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(settings: dict[str, object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        sdk.submit("train.py", backend="ray", root=tmp_path / "root", **settings)
    assert not (tmp_path / "root").exists()


def test_a_run_needs_a_root_that_the_cluster_sees(monkeypatch) -> None:
    monkeypatch.delenv("PODLIFT_ROOT", raising=False)
    with pytest.raises(InputError, match=r"No root is configured for ray.*all nodes of the cluster see"):
        sdk.submit("train.py", backend="ray")


def test_a_folder_with_runs_of_this_machine_is_not_shared(tmp_path: Path) -> None:
    (tmp_path / "root" / "runs").mkdir(parents=True)
    with FakeRay() as ray, pytest.raises(InputError, match=r"holds runs of this machine.*another folder"):
        sdk.submit("train.py", backend=sdk.Ray(address=ray.address), root=tmp_path / "root")
    assert ray.bodies == []


def test_vertex_takes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Machines of vertex share no folder"):
        sdk.plan("train.py", backend="vertex", root=f"file://{tmp_path}/root")
