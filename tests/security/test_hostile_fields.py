"""Fields of a job that reach a command line, a request or a name: a shell's words are refused, or stay one word."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import hostile
import pytest
from support import LIMIT_S, REPO

import sdk
from sdk.backends.vertex import client
from sdk.job.plan import Plan
from sdk.schedules import notices

GOOD: dict[str, Any] = {"project": "my-project", "bucket": "my-bucket", "image": "registry/image"}
# Settings with values that stand in commands of gcloud that podlift prints, or in names at Google.
FIELDS = {
    "project": lambda text: {"backend": sdk.Vertex(**{**GOOD, "project": text})},
    "bucket": lambda text: {"backend": sdk.Vertex(**{**GOOD, "bucket": text})},
    "image": lambda text: {"backend": sdk.Vertex(**{**GOOD, "image": text})},
    "keeper's image": lambda text: {
        "backend": sdk.Vertex(**{**GOOD, "image": {"cpu": "registry/image", "keeper": text}})
    },
    "account": lambda text: {"backend": sdk.Vertex(**GOOD, service_account=text)},
    "region": lambda text: {"backend": sdk.Vertex(**GOOD, regions=(text,))},
    "location": lambda text: {"backend": sdk.Vertex(**GOOD, regions=f"{text}:spot")},
    "machine": lambda text: {"backend": sdk.Vertex(**GOOD, machine=text)},
    "label": lambda text: {"backend": sdk.Vertex(**GOOD, labels={"label": text})},
    "name of a label": lambda text: {"backend": sdk.Vertex(**GOOD, labels={text: "label"})},
    "accelerator": lambda text: {"accelerator": text},
    "name": lambda text: {"name": text},
    "backend": lambda text: {"backend": text},
    "model": lambda text: {"model": text},
    "variable": lambda text: {"env": {text: "x"}},
    "secret": lambda text: {"env": {"A": sdk.Secret(f"projects/{text}/secrets/s")}},
    "bucket of the root": lambda text: {"root": f"gs://{text}/podlift"},
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_in_a_command_or_a_name_holds_nothing_that_a_shell_reads(write, field: str) -> None:
    write("train.py", "print(1)")
    for text in hostile.SHELL.values():
        with pytest.raises(sdk.InputError):
            sdk.plan("train.py", **FIELDS[field](text))


@pytest.mark.parametrize("text", hostile.SHELL.values())
def test_a_notification_names_a_variable_or_a_secret_and_nothing_else(text: str) -> None:
    for rest in (text, f"A;{text}", f"projects/{text}/secrets/s/versions/1"):
        with pytest.raises(sdk.InputError):
            notices.check(f"webhook:{rest}")


@pytest.mark.process
def test_arguments_variables_and_paths_of_a_run_are_words_as_they_are(write, tmp_path: Path, monkeypatch) -> None:
    texts = [*hostile.SHELL.values(), *hostile.TERMINAL.values(), "-c", "--", "%s", "${HOME}", "", "é 中"]
    # The folders of the project and of the root, too.
    project = tmp_path / "$(touch owned); `id` -rf 'x'"
    project.mkdir()
    monkeypatch.chdir(project)
    program = "import json, os, sys\nprint(json.dumps([sys.argv[1:], os.environ['TEXT'], sys.executable]))\n"
    Path("train.py").write_text(program)
    env = "\n".join(text for text in texts if text)
    run = sdk.submit("train.py", args=texts, env={"TEXT": env}, root=project / "--root", code_project=".")
    assert run.wait(LIMIT_S).state is sdk.State.SUCCEEDED
    (line,) = [each.text for each in run.logs() if each.text.startswith("[[")]
    assert json.loads(line) == [texts, env, sys.executable]
    assert not [path for path in tmp_path.rglob("owned") if path.name == "owned"]


def test_a_plan_from_elsewhere_has_no_path_that_leaves_its_folder(write) -> None:
    write("train.py", "print(1)")
    made = json.loads(sdk.plan("train.py").to_json())
    for path in ("../owned", "/owned", "a/../../owned", "a\0b"):
        for changes in (
            {"cwd": path},
            {"roots": [path]},
            {"generated": [path]},
            {"files": [[path, *made["files"][0][1:]]]},
            {"run_id": path},
            {"digest": path},
            {"tasks": [path]},
        ):
            with pytest.raises(sdk.CorruptRunError):
                Plan.from_json(json.dumps({**made, **changes}), "plan.json")


@pytest.mark.parametrize(
    "name",
    [
        "projects/p/locations/evil.example#/customJobs/1",
        "projects/p/locations/evil.example?/customJobs/1",
        "projects/p/locations/us@evil.example/customJobs/1",
        "projects/p/locations/../customJobs/1",
        "projects/../locations/us-central1/customJobs/1",
        "projects/p/locations/us-central1/customJobs/..",
        "projects/p/locations/us-central1/customJobs/1?x",
        "projects/p/locations/us-central1/customJobs/1/../2",
        "https://evil.example/projects/p/locations/us-central1/customJobs/1",
        "projects/p/locations/us-central1/customJobs/1\r\nX: y",
        "",
    ],
)
def test_credentials_go_to_no_host_that_a_record_in_a_bucket_names(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(address: str) -> None:
        raise AssertionError(f"asked {address}")

    monkeypatch.setattr(client, "session", refuse)
    with pytest.raises(sdk.InputError, match="Not a job or region"):
        client.send("GET", name, "", dict)


# Formats with readers that run code of the file, and calls that give a text to a shell.
CODE = re.compile(
    r"^\s*(import|from) (pickle|marshal|shelve|dill|cloudpickle|joblib|yaml)\b|allow_pickle=True|safe_mode=False"
    r"|enable_unsafe_deserialization|shell=True|os\.(system|popen)\(|\.extractall\(|tempfile\.mktemp\(|verify=False",
    re.MULTILINE,
)


def test_nothing_of_podlift_reads_a_format_that_runs_code_or_starts_a_shell() -> None:
    sources = [*(REPO / "sdk").rglob("*.py"), *(REPO / "jobs").rglob("*.py")]
    found = [
        f"{path.relative_to(REPO)}: {match[0].strip()}" for path in sources for match in CODE.finditer(path.read_text())
    ]
    assert found == [] and len(sources) > 400
    assert CODE.search("import pickle\n") and CODE.search("run(x, shell=True)")
