"""The mirror of a model in the emulated Model Registry, read by Google's own client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import LIMIT_S, REPO, Later, full_only, until

import sdk
from sdk.cli import app
from sdk.errors import InputError
from sdk.registry import mirroring
from sdk.registry.lineage import Candidate
from sdk.registry.models import Model
from sdk.testing.vertex import Cloud

aiplatform = Later("google.cloud.aiplatform")
AnonymousCredentials = Later("google.auth.credentials", "AnonymousCredentials")
IMAGE = "us-docker.pkg.dev/acme/serve:1"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with Cloud(tmp_path_factory.mktemp("mirror") / "data") as cloud:
        yield cloud


@pytest.fixture
def model(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model with three versions in the emulated bucket; Vertex AI is configured by variables."""
    cloud.reset()
    cloud.make_bucket()
    root = f"gs://{cloud.bucket}/runs"
    for name, text in {"EMULATOR": cloud.url, "ROOT": root, "VERTEX_PROJECT": cloud.project}.items():
        monkeypatch.setenv(f"PODLIFT_{name}", text)
    monkeypatch.chdir(tmp_path)
    made = Model(root, "digits")
    for number in (1, 2, 3):
        add(made, number, tmp_path)
    return made


def add(model: Model, number: int, folder: Path) -> None:
    (folder / str(number) / "variables").mkdir(parents=True)
    (folder / str(number) / "model.keras").write_text(f"weights {number}")
    (folder / str(number) / "variables" / "labels.txt").write_text("0 1 2")
    about = {"state": "SUCCEEDED", "bundle": "0" * 64, "program": "train.py", "args": (), "source": "model"}
    run = f"digits-aaaaa{'abcdef'[number]}"
    model.add(Candidate(folder=str(folder / str(number)), run=run, run_url="", metrics={}, data={}, **about))


@pytest.fixture
def there(cloud: Cloud) -> Iterator[Callable[[], dict[str, object]]]:
    """Return the versions at the service as Google's client has them, by number of the registry."""
    options = {"project": cloud.project, "location": cloud.region, "api_transport": "rest", "api_endpoint": cloud.url}
    aiplatform.init(**options, credentials=AnonymousCredentials())

    def versions() -> dict[str, object]:
        registry = aiplatform.models.ModelRegistry("digits")
        found = [registry.get_model(each.version_id) for each in registry.list_versions()]
        assert len({each.labels["podlift-version"] for each in found}) == len(found), "no number is there twice"
        return {each.labels["podlift-version"]: each for each in found}

    yield versions
    aiplatform.initializer.global_config.__init__()


def holder(found: dict[str, object]) -> list[str]:
    return [number for number, each in found.items() if mirroring.ALIAS in each.version_aliases]


def test_each_move_of_the_champion_is_mirrored_with_its_files_labels_and_alias(cloud, model, there, capsys) -> None:
    assert app.run(["models", "mirror", "digits", "--to", "vertex", "--image", IMAGE]) == 0
    assert "from the first promotion on" in capsys.readouterr().err
    for number in (1, 2):
        assert app.run(["models", "promote", "digits", str(number)]) == 0
        said = capsys.readouterr().err
        assert f"digits: mirrored to {cloud.parent}/models/digits@{number}: version {number}" in said
    found = there()
    assert (sorted(found), holder(found)) == (["1", "2"], ["2"])
    assert found["2"].container_spec.image_uri == IMAGE
    assert found["2"].labels["podlift-run"] == model.version(2).record.run
    assert model.version(2).record.manifest.startswith(found["2"].labels["podlift-manifest"])
    bucket, _, prefix = found["2"].uri.removeprefix("gs://").partition("/")
    blobs = cloud.client().list_blobs(bucket, prefix=f"{prefix}/")
    assert {blob.name.removeprefix(f"{prefix}/"): blob.download_as_bytes() for blob in blobs} == {
        "model.keras": b"weights 2",
        "variables/labels.txt": b"0 1 2",
    }
    sdk.models()["digits"].rollback()
    assert holder(there()) == ["1"]
    assert app.run(["models", "show", "digits"]) == 0
    assert "models/digits@1: version 1" in capsys.readouterr().err


def test_without_an_image_a_version_has_no_artifacts_and_names_its_files(model, there) -> None:
    model.promote(1)
    assert sdk.models().mirror("digits", "vertex").champion == 1
    (version,) = there().values()
    assert (version.uri, version.version_aliases) == (None, ["champion", "default"])
    assert f"files {model.store.url}/exports/digits/000001" in version.version_description


@pytest.mark.parametrize("operation", ["models.upload", "models.mergeVersionAliases", "models.listVersions"])
@pytest.mark.parametrize("kind", ["drop_after", "drop_before"])
def test_a_lost_request_or_reply_makes_no_second_version(cloud, model, there, monkeypatch, operation, kind) -> None:
    monkeypatch.setattr("sdk.backends.vertex.model_registry._LOST_S", 0.5)
    sdk.models().mirror("digits", "vertex")
    cloud.faults({"api": "vertex", "kind": kind, "operation": operation, "nth": 1})
    model.promote(1)
    # Of these, only an upload is not sent again: it is looked for, and one that never arrived is left to the next call.
    expected = "cannot be reached" if (operation, kind) == ("models.upload", "drop_before") else ""
    problem = mirroring.read(model)[0].problem
    assert expected in problem and bool(expected) == bool(problem)
    cloud.faults()
    model.promote(2)
    sdk.models().mirror("digits")
    assert holder(there()) == ["2"]


def test_a_mirror_that_fails_is_said_recorded_and_repaired_and_the_champion_has_moved(
    cloud, model, there, capsys
) -> None:
    sdk.models().mirror("digits", "vertex")
    model.promote(1)
    cloud.faults({"api": "vertex", "kind": "deny", "operation": "models.upload"})
    assert app.run(["models", "promote", "digits", "2"]) == 0
    said = capsys.readouterr().err
    assert "roles/aiplatform.user is needed" in said and "Next: podlift models mirror digits" in said
    assert (model.champion().number, holder(there())) == (2, ["1"])
    assert app.run(["models", "mirror", "digits", "--check"]) == 3
    assert "models/digits lacks version 2, the champion." in capsys.readouterr().err
    cloud.faults()
    assert app.run(["models", "mirror", "digits"]) == 0
    assert holder(there()) == ["2"]
    assert app.run(["models", "mirror", "digits", "--check"]) == 0


def test_an_alias_that_another_client_moved_stays_until_it_is_taken_back(model, there, capsys) -> None:
    sdk.models().mirror("digits", "vertex")
    for number in (1, 2):
        model.promote(number)
    aiplatform.models.ModelRegistry("digits").add_version_aliases([mirroring.ALIAS], "1")
    assert app.run(["models", "promote", "digits", "3"]) == 0
    assert capsys.readouterr().err.endswith(
        "--take-alias, which moves it to the champion; or podlift models promote digits 1.\n"
    )
    sentence = (
        r"Another client moved the alias 'champion' of .*: it is on its version 1 \(version 1 of 'digits'\), not on its "
        r"version 3, the champion \(version 3 of 'digits'\).*--take-alias"
    )
    with pytest.raises(InputError, match=sentence):
        sdk.models().mirror("digits")
    assert (model.champion().number, holder(there())) == (3, ["1"])
    assert "--take-alias" in "".join(mirroring.drift(model))
    sdk.models().mirror("digits", take_alias=True)
    assert (holder(there()), mirroring.drift(model)) == (["3"], [])


def test_processes_that_mirror_at_the_same_time_leave_one_version_each_and_the_alias_on_the_champion(
    model, there
) -> None:
    sdk.models().mirror("digits", "vertex")
    with ThreadPoolExecutor(8) as pool:
        moves = [pool.submit(Model(model.root, "digits").promote, number) for number in (1, 2, 3, 1, 2, 3)]
        failed = [each.exception() for each in moves if each.exception()]
    assert all("is not the expected one" in str(each) for each in failed)
    sdk.models().mirror("digits")
    assert holder(there()) == [str(model.champion().number)]


def test_a_promotion_by_a_process_without_googles_libraries_is_mirrored(model, there) -> None:
    sdk.models().mirror("digits", "vertex")
    code = f"""
import sys
class Missing:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "google":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing)
from sdk.registry.models import Model
Model({model.root!r}, "digits").promote(2)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True, timeout=120
    )
    assert mirroring.read(model)[0].problem == "", done.stderr
    assert holder(there()) == ["2"]


PROGRAM = """
import pathlib, sdk
context = sdk.context()
folder = pathlib.Path(context.dirs.model.replace("gs://", "/gcs/"))
folder.mkdir(exist_ok=True)
(folder / "model.keras").write_text("trained")
context.report({"accuracy": 0.5}, step=1)
"""


@pytest.mark.parametrize("backend", ["local", "vertex", full_only("keeper")])
def test_a_run_in_a_bucket_is_registered_and_what_its_last_phase_promotes_is_mirrored(
    cloud, model, there, tmp_path, backend
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "quality.py").write_text("def measure(folder, data):\n    return {'accuracy': 0.5}\n")
    cloud.client().bucket(cloud.bucket).blob("rows.csv").upload_from_string(b"1\n")
    kept = {"keeper": True, "keeper_service_account": "k@acme.iam.gserviceaccount.com", "provisioning": "spot"}
    target = cloud.backend(bucket=model.root, **(kept if backend == "keeper" else {}))
    sdk.models().mirror("digits", "vertex", image=IMAGE)
    run = sdk.submit(
        "train.py",
        backend="local" if backend == "local" else target,
        root=model.root,
        name="trained",
        inputs={"rows": f"gs://{cloud.bucket}/rows.csv"},
        model="digits",
        gate_evaluate="quality:measure",
        gate_data="rows",
        gate_metric="accuracy",
        gate_where="keeper" if backend == "keeper" else "job",
    )
    run.result(LIMIT_S)
    # A keeper evaluates after the end of the run.
    until(lambda: mirroring.read(model)[0].champion == 4, lambda: f"{mirroring.read(model)[0]} {run.why()}")
    assert (model.champion().number, holder(there())) == (4, ["4"]), mirroring.read(model)[0]
    assert there()["4"].labels["podlift-run"] == run.id
    version = sdk.models().add(run.url, model="digits")
    assert (version.number, version.model.root, version.record.run_url) == (4, model.root, run.url), "it is the same"
    assert (dict(version.metrics), version.record.state) == ({"accuracy": 0.5}, "SUCCEEDED")
    assert len(version.record.data["rows"].digest) == 64
    assert Path(version.download(tmp_path / "home"), "model.keras").read_text() == "trained"


def test_what_cannot_be_mirrored_is_refused_with_the_next_step(cloud, model, there, tmp_path, monkeypatch) -> None:
    registry = sdk.models()
    for wrong, sentence in (
        ("local", "The backend local has no registry of models. Received: 'local'. Known: vertex"),
        ("vertx", "Did you mean 'vertex'"),
        (None, r"The model 'digits' is not mirrored. Next: podlift models mirror digits --to BACKEND"),
    ):
        with pytest.raises(InputError, match=sentence):
            registry.mirror("digits", wrong)
    add(own := Model(str(tmp_path / "root"), "own"), 5, tmp_path)
    monkeypatch.delenv("PODLIFT_VERTEX_PROJECT")
    with pytest.raises(
        InputError, match=r"(?s)2 problems:.*register the model in a root in a bucket.*vertex_project is not set"
    ):
        sdk.models(own.root).mirror("own", "vertex")
    monkeypatch.setenv("PODLIFT_VERTEX_PROJECT", cloud.project)
    aiplatform.Model.upload(display_name="digits", model_id="digits", labels={"podlift-version": "0"})
    with pytest.raises(InputError, match=r"none of its versions is from gs://.* Next: --as digits, if versions of"):
        registry.mirror("digits", "vertex")
    model.promote(2)
    assert registry.mirror("digits", "vertex", model_id="digits").champion == 2
    assert sorted(there()) == ["0", "2"]
    with pytest.raises(InputError, match="image say where a model is mirrored, which needs to="):
        registry.mirror("digits", image=IMAGE)
    assert app.run(["models", "mirror", "digits", "--stop"]) == 0
    model.promote(3)
    assert holder(there()) == ["2"], "what is there stays, and nothing follows"
