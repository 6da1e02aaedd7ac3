"""`podlift models`: the model of a run is registered, promoted, shown, rolled back and kept by remove; and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import dedent

import pytest
from support import LIMIT_S

import sdk
from sdk.upkeep import remove

pytestmark = [pytest.mark.process]

TRAIN = """
    import pathlib, sys, sdk
    context = sdk.context()
    if len(sys.argv) > 1:
        pathlib.Path(context.dirs.model, "m.keras").write_text(f"weights {sys.argv[1]}")
        context.report({"accuracy": float(sys.argv[1])}, step=1)
    pathlib.Path("log.csv").write_text("1,2")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[sdk.Run]:
    """Two runs with a model, and one without."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(dedent(TRAIN))
    (folder / "rows.csv").write_text("1\n")
    inputs = {"rows": folder / "rows.csv"}
    submit = partial(sdk.submit, folder / "train.py", root=folder / "root", name="digits", inputs=inputs)
    made = [submit(args=args) for args in (["0.5"], ["0.75"], [])]
    for run in made:
        run.result(LIMIT_S)
    return made


@pytest.fixture
def runs(trained: list[sdk.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[sdk.Run]:
    """The same runs, in a root of this test without models."""
    shutil.copytree(trained[0].plan.root, tmp_path / "root")
    monkeypatch.setenv("PODLIFT_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    return [sdk.attach(run.id) for run in trained]


def the_json(shown):
    assert shown.code == 0, shown.stderr
    return json.loads(shown.stdout)


def test_models_are_registered_promoted_compared_rolled_back_and_loaded(runs: list[sdk.Run], here: Callable) -> None:
    added = here("models", "add", runs[0].id)
    assert (added.code, added.stdout) == (0, "1\n")
    assert added.stderr.endswith("is registered. Next: podlift models promote digits 1\n")
    assert the_json(here("models", "promote", "digits", "1", "--json"))["state"] == "champion"
    second = the_json(here("models", "add", runs[1].id, "--ask", "in the band", "--json"))
    assert (second["number"], second["parent"], second["state"]) == (2, 1, "awaits approval")
    assert (second["metrics"], second["bundle"]) == ({"accuracy": 0.75}, runs[1].plan.code.digest)
    assert len(second["data"]["rows"]["digest"]) == 64
    assert here("models", "add", runs[1].id).stdout == "2\n", "the same files of the same run"
    shown = here("diff", "digits:champion", "digits:latest")
    assert shown.code == 1 and here("diff", "digits:1", "digits:champion").code == 0
    rows = ["accuracy 0.5000 0.7500", "code same", "arguments different", "data same", "~ m.keras"]
    assert [" ".join(line.split()) for line in shown.stdout.splitlines()[1:]] == rows
    assert here("models", "promote", "digits", "2", "--as-compared", "--note", "seen").code == 0
    assert "promote  version 1 -> version 2" in here("models", "status", "digits").stderr
    both = "Both are version 2 of 'digits'. Next: podlift diff digits:1 digits:2\n"
    assert here("diff", "digits:champion", "digits:latest") == (0, "", both)
    folder = sdk.models()["digits"].champion().download("model")
    assert Path(folder, "m.keras").read_text() == "weights 0.75"
    assert here("models", "promote", "digits", "--previous", "--note", "worse").code == 0
    assert here("get", "digits:").stdout == f"{Path('digits-1').resolve()}\n"
    assert Path("digits-1/m.keras").read_text() == "weights 0.5"
    got = the_json(here("get", "digits:latest", "second", "--json"))
    assert (got["number"], got["dest"]) == (2, str(Path("second").resolve()))
    one = here("models", "status", "digits", "1", "--verify")
    assert f"\ncode       {runs[0].plan.code.digest[:12]}\n" in one.stdout
    assert f"\ncode       {runs[0].plan.code.digest}\n" in here("models", "status", "digits", "1", "-v").stdout
    assert runs[0].url in one.stdout and "1 version of 1 verified" in one.stderr
    (listed,) = the_json(here("models", "list", "--json"))
    assert (listed["champion"], listed["latest"], listed["awaiting"]) == (1, 2, 0)


def test_a_registry_of_a_root_finds_the_runs_of_that_root(runs: list[sdk.Run], tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PODLIFT_ROOT", str(tmp_path / "elsewhere"))
    registry = sdk.models(tmp_path / "root")
    assert registry.add(runs[0].id).model.root == str(tmp_path / "root")
    assert registry["digits"].numbers() == [1]
    with pytest.raises(sdk.RunNotFoundError):
        sdk.models().add(runs[0].id)


def test_on_a_narrow_terminal_no_column_is_cut(runs: list[sdk.Run], here, on_terminal, monkeypatch) -> None:
    here("models", "add", runs[0].id, "--ask", "in the band")
    on_terminal()
    monkeypatch.setenv("COLUMNS", "60")
    head, more, row, rest = here("models", "status", "digits").stdout.splitlines()
    assert head.split() == ["version", "state", "run", "registered"]
    assert more.split() == ["size", "metrics", "in", "training"]
    assert row.split()[:4] == ["1", "awaits", "approval", runs[0].id]
    assert rest.startswith("    ") and rest.endswith("accuracy: 0.5000")
    monkeypatch.setenv("COLUMNS", "120")
    assert len(here("models", "status", "digits").stdout.splitlines()) == 2


def test_podlift_remove_keeps_a_versions_run_and_code_and_a_version_outlives_its_run(runs, here: Callable) -> None:
    here("models", "add", runs[0].id)
    here("models", "promote", "digits", "1")
    root = runs[0].plan.root
    plan = remove.find(root, older_than_s=0, keep=0, now=runs[0].status().since + 10 * 86400)
    assert {item.name for item in plan.items if item.kind in ("run", "bundle")} == {runs[1].id, runs[2].id}
    assert any(runs[0].id in each.path and "names it" in each.why for each in plan.skipped)
    remove.remove(plan)
    assert Path(runs[0].plan.bundle).is_file()
    assert the_json(here("models", "status", "digits", "--verify", "--json"))["shown"][0]["damage"] == []
    shutil.rmtree(runs[0].url)
    assert here("get", "digits:champion").code == 0


def test_a_version_is_removed_and_podlift_remove_frees_its_files_and_its_run(runs: list[sdk.Run], here) -> None:
    for run in runs[:2]:
        here("models", "add", run.id)
    here("models", "promote", "digits", "1")
    refused = here("models", "remove", "digits", "1")
    assert "Version 1 is the champion of 'digits', which cannot be removed" in refused.stderr
    shown = here("models", "remove", "digits", "2")
    assert (shown.code, shown.stdout) == (0, "2\n")
    kept = f"the run {runs[1].id} is no longer kept"
    assert f"12 bytes of its files belong to no other version, and {kept}" in shown.stderr
    now = runs[0].status().since + 10 * 86400
    found = remove.find(runs[0].plan.root, older_than_s=0, keep=0, now=now).items
    assert [item.name for item in found if item.kind == "run" and item.name == runs[1].id]
    assert len([item for item in found if item.kind == "model part"]) == 2
    assert the_json(here("models", "status", "digits", "--verify", "--json"))["shown"][0]["damage"] == []


def test_an_unregistrable_or_unknown_model_is_refused_with_the_next_step(runs: list[sdk.Run], here: Callable) -> None:
    none = runs[2].id
    refused = here("models", "add", none)
    assert refused.code == 2
    assert f"{none} has no model: its program wrote no file to ctx.dirs.model. It has work/log.csv." in refused.stderr
    assert f"Next: podlift models add {none} --path work/log.csv" in refused.stderr
    assert here("models", "add", none, "--path", "../x").code == 2
    assert "Nearest: 'my-model'" in here("models", "add", runs[0].id, "--model", "My Model").stderr
    assert here("models", "list").stderr == "There are no models. Next: podlift models add RUN\n"
    assert here("models", "add", none, "--path", "work/log.csv", "--model", "table").stdout == "1\n"
    assert "Did you mean 'table'?" in here("models", "status", "tabel").stderr
    for words, said in (
        (("models", "promote", "table", "7"), "It has version 1"),
        (("models", "promote", "table", "--previous"), "There is none. Nothing was changed"),
        (("models", "promote", "table", "1", "--previous"), "use --previous alone"),
        (("models", "promote", "table"), "Name the version"),
        (("get", "table:7"), "It has version 1"),
        (("get", "tabel:1"), "Did you mean 'table'?"),
        (("diff", "table:1", "table:2"), "It has version 1"),
        (("diff", "table:1", none), "is compared with another version of it"),
        (("get", "digits:1:2"), "is written as MODEL:VERSION, the champion as MODEL:. Received: 'digits:1:2'."),
        (("models", "promot"), "Unknown command: models promot. Did you mean: podlift models promote?"),
        (("models", "rollback"), "Did you mean: podlift models promote MODEL --previous?"),
        (("models", "get"), "Did you mean: podlift get MODEL:VERSION?"),
    ):
        shown = here(*words)
        assert shown.code == 2 and said in shown.stderr, words


def test_a_model_of_which_files_were_not_collected_is_refused(write, here: Callable, root: Path) -> None:
    leaves = "open(f'{top}/a', 'w').close(); os.symlink('/etc/passwd', f'{top}/b')"
    write("train.py", f"import os, sdk; top = sdk.context().dirs.model; {leaves}")
    run = sdk.submit("train.py", root=root)
    run.result(LIMIT_S)
    refused = here("models", "add", run.url)
    assert refused.code == 2
    assert "is incomplete. Not collected: model/b (a link that leaves the folder)" in refused.stderr


def test_a_run_that_goes_on_has_no_model_yet(write, here: Callable, root: Path) -> None:
    write("train.py", "import time; time.sleep(300)")
    run = sdk.submit("train.py", root=root)
    try:
        assert f"Next: podlift wait {run.id}" in here("models", "add", run.url).stderr
    finally:
        run.cancel(0)
        run.wait(LIMIT_S)
