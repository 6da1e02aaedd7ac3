"""A module that the bundle lacks cannot be imported from the original project, however it gets onto the path."""

import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support import LIMIT_S

import sdk

pytestmark = [pytest.mark.process]

# Every way in which the original project is found in practice, each with its own module.
WAYS = ("pythonpath", "pth", "path_insert", "editable_finder")
PROGRAM = """
    import importlib, importlib.util, json, os, site, sys
    import sdk

    original, finders = sys.argv[1:]


    def outcome(name):
        try:
            return os.path.dirname(importlib.import_module(name).__file__ or "no file")
        except ImportError as error:
            return [type(error).__name__, error.name, str(error)]


    class Editable:
        @staticmethod
        def find_spec(fullname, path=None, target=None):
            if fullname == "by_editable_finder":
                return importlib.util.spec_from_file_location(fullname, f"{original}/{fullname}.py")


    names = ("by_pythonpath", "package", "plain_folder", "shared.inside", "shared.outside", "package.below")
    found = {name: outcome(name) for name in names}
    sys.path.remove(original)
    site.addsitedir(finders)
    found["by_pth"] = outcome("by_pth")
    sys.path.insert(0, original)
    found["by_path_insert"] = outcome("by_path_insert")
    sys.path.remove(original)
    sys.meta_path.append(Editable)
    found["by_editable_finder"] = outcome("by_editable_finder")
    sys.path += [f"{original}/link_to_helpers", f"{original}/.venv/lib/python3/site-packages"]
    for name in ("by_link", "installed", "json", "train_helper", "missing"):
        found[name] = outcome(name)
    found["sdk"] = os.path.dirname(sdk.__file__)
    print(json.dumps(found))
"""


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """The user's project as it lies on this machine, with the modules that the bundle will lack."""
    folder = tmp_path / "original"
    modules = [f"by_{way}.py" for way in WAYS]
    modules += ["package/__init__.py", "package/below.py", "plain_folder/data.csv", "shared/outside.py"]
    for module in [*modules, "helpers/by_link.py", ".venv/lib/python3/site-packages/installed.py"]:
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).write_text("")
    (folder / "link_to_helpers").symlink_to(folder / "helpers")
    return folder


def guarded(original: Path, *, args: Sequence[str] = (), root: Path | None = None) -> sdk.Run:
    """Run train.py with the original project on its path, outside of the bundle."""
    plan = sdk.plan(sdk.Job("train.py", args=args, env={"PYTHONPATH": str(original)}), root=root)
    return sdk.submit(replace(plan, code=replace(plan.code, outside=[str(original)])))


@pytest.fixture
def found(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    # The bundle comes from a copy that lacks those; the run lies below the original, as a root in a project does.
    project = tmp_path / "project"
    for path, text in {"train.py": PROGRAM, "train_helper.py": "", "shared/inside.py": ""}.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(textwrap.dedent(text))
    finders = tmp_path / "finders"
    finders.mkdir()
    (finders / "project.pth").write_text(f"{original}\n")
    monkeypatch.chdir(project)
    run = guarded(original, args=[str(original), str(finders)], root=original / "root")
    run.result(LIMIT_S)
    return json.loads(next(line.text for line in run.logs() if line.text.startswith("{")))


def test_the_error_of_a_module_outside_the_bundle_names_its_place_and_the_next_step(found, original) -> None:
    for name in [*(f"by_{way}" for way in WAYS), "package", "plain_folder", "shared.outside"]:
        kind, missing, said = found[name]
        assert (kind, missing) == ("ModuleNotFoundError", name)
        assert f"The module {name!r} is not in the bundle" in said
        assert repr(str(original))[1:-1] in said
    included = {"by_pth": "by_pth.py", "package": "package,", "plain_folder": "plain_folder,"}
    for name, path in {**included, "shared.outside": "shared/outside.py"}.items():
        assert f"--code-include {path}" in found[name][2]
    assert found["package.below"][1] == "package"
    assert "--code-include helpers/by_link.py" in found["by_link"][2], "where the link leads"


def test_a_module_of_the_bundle_or_an_installed_one_loads_as_ever(found, original) -> None:
    work = found["train_helper"]
    assert Path(work).is_relative_to(original / "root"), "below the original, and yet the bundle's"
    assert found["shared.inside"] == f"{work}/shared"
    assert found["installed"] == str(original / ".venv/lib/python3/site-packages")
    assert found["json"] == os.path.dirname(json.__file__)
    assert found["sdk"] == os.path.dirname(sdk.__file__)
    assert found["missing"] == ["ModuleNotFoundError", "missing", "No module named 'missing'"]


def test_an_unguarded_import_fails_the_run_with_that_sentence(write, original) -> None:
    write("train.py", "import importlib\nimportlib.import_module('by_' + 'pythonpath')\n")
    with pytest.raises(sdk.RunFailedError, match=r"Next: package it with --code-include by_pythonpath\.py"):
        guarded(original).result(LIMIT_S)


@pytest.mark.parametrize(("cwd", "files"), [("data", ["numbers.csv"]), ("runs/new", [])])
def test_the_program_starts_in_the_folder_that_the_plan_names(write, cwd, files) -> None:
    write("pkg/train.py", "import os, sys, helper\nprint(os.getcwd(), *sys.argv, *os.listdir())\n")
    write("pkg/helper.py")
    write("data/numbers.csv")
    plan = sdk.plan(sdk.Job("pkg/train.py", args=["x"], code=sdk.Code(project=".")))
    run = sdk.submit(replace(plan, code=replace(plan.code, cwd=cwd)))
    run.result(LIMIT_S)
    work = run.plan.paths.work(1, "chief-0")
    assert [line.text for line in run.logs()] == [" ".join([f"{work}/{cwd}", f"{work}/pkg/train.py", "x", *files])]
