"""A plan in a file, made here and executed later exactly as it is; two plans compared; places and machines of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import holds

import sdk


@pytest.mark.process
def test_a_written_plan_is_executed_exactly(write, here, tmp_path: Path, monkeypatch) -> None:
    write("train.py", "import sys; print(sys.argv[1:])")
    planned = here("plan", "train.py", "-v", "-o", "p.json", "--workers", "2", "--", "--epochs", "3")
    assert (planned.code, "podlift submit p.json" in planned.stderr) == (0, True)
    plan = sdk.Plan.from_json(Path("p.json").read_text(), "p.json")
    assert str(plan) + "\n" == planned.stdout
    monkeypatch.setenv("PODLIFT_WORKERS", "7")
    shown = here("submit", "p.json", "--json")
    assert shown.code == 0, shown.stderr
    run = sdk.attach(json.loads(shown.stdout)["id"])
    assert run.plan == plan
    assert [line.text for line in run.logs(task="worker-0")] == ["['--epochs', '3']"]
    again = here("submit", "p.json")
    assert (again.code, "was submitted before" in again.stderr) == (2, True)


@pytest.mark.process
def test_a_written_plan_starts_in_a_root_that_machines_share(project, here, tmp_path: Path) -> None:
    assert here("plan", "train.py", "-o", "p.json", "--root", f"file://{tmp_path}/shared").code == 0
    shown = here("submit", "p.json")
    assert shown.code == 0, shown.stderr
    assert (tmp_path / "shared" / "runs").is_dir()


@pytest.fixture
def written(project, here) -> Path:
    """The plan of a program."""
    assert here("plan", "train.py", "-o", "p.json").code == 0
    return Path("p.json")


@pytest.mark.parametrize("beside", [["--workers", "2"], ["--root", "x"], ["more"]])
def test_nothing_may_be_given_beside_a_written_plan(written: Path, here, beside: list[str], root: Path) -> None:
    shown = here("submit", "p.json", *beside)
    assert (shown.code, "cannot be combined with settings" in shown.stderr) == (2, True)
    assert not root.exists()


def test_a_plan_with_changed_files_or_without_a_file_is_refused(written: Path, write, here, root: Path) -> None:
    assert here("submit", "nothing.json").code == 2
    write("train.py", "print(2)")
    shown = here("submit", "p.json")
    assert (shown.code, "Files changed since the plan was made: train.py" in shown.stderr) == (2, True)
    assert not root.exists()


@pytest.mark.parametrize("name", ["train.py", "package.json", "-", "plan"])
def test_a_plan_overwrites_nothing_but_a_plan(project, here, name: str) -> None:
    project("package.json", '{"version": 1}')
    shown = here("plan", "train.py", "-o", name)
    assert (shown.code, repr(name) in shown.stderr) == (2, True)
    kept = {path.name: path.read_text().strip() for path in Path().iterdir()}
    assert kept == {"train.py": "print(1)", "package.json": '{"version": 1}'}


def test_a_plan_is_written_again_also_into_an_empty_file_but_into_no_missing_folder(written: Path, here) -> None:
    for text in (written.read_text(), ""):
        written.write_text(text)
        assert here("plan", "train.py", "-o", "p.json").code == 0
    shown = here("plan", "train.py", "-o", "no/such/folder/p.json")
    assert (shown.code, "The output is not a usable path" in shown.stderr) == (2, True)


CHANGES = {
    "no JSON": lambda data: "{",
    "another version": lambda data: {**data, "version": 9},
    "a run that climbs": lambda data: {**data, "run_id": "../../x-aaaaaa"},
    "files that are none": lambda data: {**data, "files": 3},
    "a row that is no file": lambda data: {**data, "files": [["train.py"]]},
    "another cluster": lambda data: {**data, "tasks": ["chief-0", "chief-1"]},
    "a backend that is none": lambda data: {**data, "backend": "nowhere"},
    "no limits": lambda data: {**data, "job": {**data["job"], "limits": {}}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_forged_plan_is_refused_before_anything_is_written(written: Path, here, root: Path, name: str) -> None:
    changed = CHANGES[name](json.loads(written.read_text()))
    written.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    shown = here("submit", "p.json")
    assert (shown.code, "Traceback" in shown.stderr) == (2, False), shown.stderr
    assert not root.exists()


@pytest.mark.process
def test_diff_ends_as_diff_does_and_takes_files_and_runs(write, here) -> None:
    write("code/train.py", "print(1)")
    assert here("plan", "code/train.py", "-o", "a.json").code == 0
    assert here("plan", "code/train.py", "-o", "same.json").code == 0
    assert here("plan", "code/train.py", "--workers", "2", "-o", "b.json").code == 0
    assert here("diff", "a.json", "same.json") == (0, "", "")
    shown = here("diff", "a.json", "b.json")
    assert (shown.code, shown.stderr) == (1, "")
    assert "job          ~ resources.workers: 1 -> 2\n" in shown.stdout
    found = json.loads(here("diff", "a.json", "b.json", "--json").stdout)
    assert found["tasks"][0]["path"] == "worker-0"

    run = json.loads(here("submit", "code/train.py", "--json").stdout)
    assert here("diff", "a.json", run["id"]) == (0, "", "")
    assert here("diff", run["url"], "b.json").code == 1


@pytest.mark.parametrize("other", ["nothing.json", "train.json", "nothing-aaaaaa"])
def test_an_unreadable_plan_is_named_and_is_no_difference(project, here, other: str) -> None:
    project("train.json", "{}")
    assert here("plan", "train.py", "-o", "a.json").code == 0
    shown = here("diff", "a.json", other)
    assert (shown.code, shown.stdout) == (2, "")
    assert other in shown.stderr


def test_vertex_settings_come_from_the_file_the_environment_and_the_options(project, here, monkeypatch) -> None:
    project("podlift.toml", 'backend = "vertex"\n[vertex]\nproject = "in-file"\nbucket = "in-file"\nimage = "img:1"\n')
    monkeypatch.setenv("PODLIFT_VERTEX_BUCKET", "from-environment/below")
    shown = here("plan", "train.py", "--vertex-regions", "us-east1,us-west1", "--vertex-labels", '{"a": "b"}', "--json")
    plan = json.loads(shown.stdout)
    wanted = {"project": "in-file", "image": "img:1", "regions": ["us-east1", "us-west1"], "labels": {"a": "b"}}
    assert wanted.items() <= plan["backend_options"].items()
    assert (plan["root"], plan["request"]["labels"]["a"]) == ("gs://from-environment/below", "b")
    settings = {row["name"]: row["origin"] for row in json.loads(here("config", "--json").stdout)["settings"]}
    assert settings["vertex_project"] == str(Path.cwd() / "podlift.toml")
    assert settings["vertex_bucket"] == "PODLIFT_VERTEX_BUCKET"


@pytest.mark.shows("`podlift plan` shows files, machines")
def test_the_plan_in_words_names_pools_image_price_and_quotas(project, here) -> None:
    cluster = ("--workers", "3", "--ps", "1", "--evaluator", "--accelerator", "t4")
    shown = here("plan", "train.py", "-v", "--backend", "vertex", *cluster)
    assert "tasks        4 x t4, 1 x cpu: chief-0, worker-0, worker-1, ps-0, evaluator-0" in shown.stdout
    assert "pool 0       chief: 1 x n1-standard-4 with NVIDIA T4 x 1, 100 GB of disk" in shown.stdout
    holds(shown.stdout, "pool 1       worker: 2 x ", "pool 2       ps: 1 x n1-standard-4, 100 GB")
    holds(shown.stdout, "pool 3       evaluator: 1 x ", "image        <image>", "price        ")
    assert "quota        aiplatform.googleapis.com/custom_model_training_nvidia_t4_gpus: 4" in shown.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--root", "somewhere"), "cannot see folders of this one. Received: root='somewhere'"),
        (("--root", "gs://one-bucket/x", "--vertex-bucket", "another"), "Two buckets are given"),
        (("--vertex-bucket", "B"), "This is not a location in a bucket"),
        (("--vertex-regions", ","), "must name one at least"),
        (("--vertex-raw", "["), "--vertex-raw: must be JSON"),
    ],
)
def test_a_place_that_is_none_is_refused(project, here, words: tuple[str, ...], said: str) -> None:
    shown = here("plan", "train.py", "--backend", "vertex", *words)
    assert (shown.code, said in shown.stderr) == (2, True)


def test_nothing_is_submitted_to_a_place_that_is_not_configured(project, here, root) -> None:
    assert here("plan", "train.py", "--backend", "vertex", "-o", "plan.json").code == 0
    for words in (("train.py", "--backend", "vertex"), ("plan.json",)):
        shown = here("submit", *words)
        assert (shown.code, shown.stdout) == (2, "")
        holds(shown.stderr, "No project is configured", "No container image", "No bucket is configured for vertex")
    assert not root.exists()


def test_settings_for_rented_machines_are_reported_as_without_effect_here(project, here) -> None:
    given = ("--vertex-provisioning", "spot", "--vertex-machine", "n2-standard-4", "--max-cost-usd", "5")
    shown = here("plan", "train.py", *given)
    assert "warning      vertex_machine, vertex_provisioning: ignored by backend='local'." in shown.stdout
    assert "note         max_cost_usd: ignored in local mode" in shown.stdout
    assert "ignored" not in here("plan", "train.py").stdout


def test_a_package_that_only_the_image_can_bring_is_reported_and_stops_no_plan(write, here) -> None:
    write("train.py", "import tensorflow\nimport numpy\nimport nothing_here\nimport yaml\nimport wanted\n")
    shown = here("plan", "train.py", "--backend", "vertex")
    assert shown.code == 0, shown.stderr
    provide = "the image must provide it"
    said = f"'nothing_here': in no bundle, no requirement, not installed here: {provide}"
    assert f"warning      train.py:3 imports {said}" in shown.stdout
    said = f"'yaml': in no bundle, and nothing is required: {provide}. Next: add 'pyyaml'"
    assert f"warning      train.py:4 imports {said}" in shown.stdout
    assert "numpy" not in shown.stdout, "TensorFlow brings it"
    write("requirements.txt", "wanted==1.0\npyyaml\ntensorflow\n")
    shown = here("plan", "train.py", "--backend", "vertex")
    # A task installs its requirements.
    required = ("requires     3 of requirements.txt: ", "no requirement of requirements.txt, not installed here")
    holds(shown.stdout, *required, lacks=["imports 'wanted'"])
