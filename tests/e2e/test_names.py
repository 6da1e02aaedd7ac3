"""`sdk` and `podlift` are one package; a project's own module of one name comes first, in a task as by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support import LIMIT_S, REPO

import sdk
from sdk.records.recorder import read_events

OWN_SDK = {
    "requirements.txt": "",
    "sdk/__init__.py": "VALUE = 42\nclass Thing: ...\n",
    "sdk/helper.py": "from . import VALUE\ndef value(): return VALUE\n",
    "sdk/deep/__init__.py": "",
    "sdk/deep/fit.py": """
        import podlift, sdk
        from sdk import helper

        def main(more):
            return [sdk.VALUE + more, helper.value(), podlift.context().task]

        if __name__ == "__main__":
            podlift.context().report({"value": main(1)[0]})
        """,
    "train.py": """
        import multiprocessing, pickle, subprocess, sys
        import sdk
        from sdk import helper
        import sdk.deep.fit
        import podlift
        import podlift.errors

        def child(queue):
            import podlift, sdk
            queue.put([sdk.VALUE, isinstance(pickle.loads(pickle.dumps(podlift.InputError("x"))), podlift.PodliftError)])

        if __name__ == "__main__":
            assert type(pickle.loads(pickle.dumps(sdk.Thing()))) is sdk.Thing
            assert podlift.errors.InputError is podlift.InputError and not hasattr(sdk, "context")
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            values = queue.get()
            process.join()
            podlift.context().report({"value": sdk.VALUE + helper.value() + values[0], "same": values[1]})
        """,
}


@pytest.fixture
def own_sdk(write: Callable[..., Path]) -> Path:
    """Make a project with a package `sdk` of its own the current folder."""
    for path, text in OWN_SDK.items():
        write(path, text)
    return Path.cwd()


def test_a_projects_own_sdk_is_its_own_in_scripts_modules_and_functions(own_sdk: Path) -> None:
    plan = sdk.plan("train.py")
    assert plan.own_names == ["sdk"]
    assert sdk.submit(plan).result(LIMIT_S).metrics == {"value": 126, "same": 1}
    assert sdk.submit("sdk.deep.fit:main", args={"more": 1}).result(LIMIT_S).value == [43, 42, "chief-0"]
    assert sdk.submit("sdk.deep.fit").result(LIMIT_S).metrics == {"value": 43}


def test_a_projects_own_sdk_is_its_own_in_containers(own_sdk: Path, podlift_vertex) -> None:
    assert sdk.submit("train.py", backend=podlift_vertex.backend()).result(LIMIT_S).metrics == {"value": 126, "same": 1}


def test_a_projects_own_sdk_is_its_own_in_forked_tasks(own_sdk: Path, write, tmp_path: Path, monkeypatch) -> None:
    # A `tensorflow` that is imported in no time.
    for name in ("tensorflow", "keras"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    write("train.py", "import tensorflow, sdk, podlift\nprint(sdk.VALUE, podlift.context().task)")
    job = sdk.Job("train.py", env={"PYTHONPATH": sdk.FromCaller()}, resources=sdk.Resources(workers=2))
    run = sdk.submit(job, local_start="fork")
    run.result(LIMIT_S)
    (started,) = read_events(run.plan.paths, ("attempt_started",))
    assert started.data["why_fresh"] == ""
    assert sorted(line.text for line in run.logs() if line.text.startswith("42 ")) == ["42 chief-0", "42 worker-0"]


@pytest.mark.full
def test_a_projects_own_sdk_is_its_own_in_a_preflight(own_sdk: Path, write) -> None:
    from sdk.preflight import preflight

    write(
        "train.py",
        """
        import keras, sdk, tensorflow as tf
        assert sdk.VALUE == 42
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        model.compile("sgd", "mse")
        model.fit(tf.ones((16, 4)), tf.ones((16, 8)), batch_size=8, verbose=0)
        """,
    )
    report = preflight("train.py", accelerator="v5e-8")
    assert (report.reached, report.stopped) == ("done", "")


def test_a_projects_own_podlift_is_its_own_too(write) -> None:
    write("requirements.txt", "")
    write("podlift/__init__.py", "VALUE = 7")
    write("podlift/errors.py", "VALUE = 8")
    write("sdk.py", "VALUE = 9")
    write("train.py", "import podlift, podlift.errors, sdk\nprint(podlift.VALUE, podlift.errors.VALUE, sdk.VALUE)")
    write("one.py", "import podlift, podlift.errors\nimport sdk.errors\nprint(podlift.VALUE, sdk.context().task)")
    run = sdk.submit("train.py")
    run.result(LIMIT_S)
    assert [line.text for line in run.logs()] == ["7 8 9"]
    (Path.cwd() / "sdk.py").unlink()
    run = sdk.submit("one.py")
    run.result(LIMIT_S)
    assert [line.text for line in run.logs()] == ["7 chief-0"]
    # By hand, too: `python launch.py` beside the project's own package.
    code = "import sdk, podlift, podlift.errors; print(podlift.errors.VALUE, sdk.InputError.__module__)"
    assert python(code, Path.cwd()) == "8 _podlift.errors"


def test_a_program_that_takes_podlift_from_a_name_that_the_project_has_too_gets_podlift(write) -> None:
    # By hand the script's own folder is searched, and not the project's.
    write("requirements.txt", "")
    write("sdk/__init__.py", "VALUE = 42")
    write("jobs/train.py", "import sdk\nprint(sdk.context().task)")
    run = sdk.submit("jobs/train.py")
    run.result(LIMIT_S)
    assert [line.text for line in run.logs()] == ["chief-0"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "import sdk\nprint(sdk.VALUE)\nprint(sdk.context().task)",
            "train.py:3 uses 'context' of podlift by the name 'sdk'",
        ),
        ("from sdk import VALUE, context", "train.py:1 uses 'context' of podlift by the name 'sdk'"),
        ("from sdk import VALUE\nimport sdk.checkpoint", "train.py:2 uses 'checkpoint' of podlift by the name 'sdk'"),
    ],
)
def test_a_program_that_means_both_by_one_name_is_refused_with_the_way_out(write, text: str, said: str) -> None:
    write("sdk/__init__.py", "VALUE = 42")
    write("train.py", text)
    with pytest.raises(sdk.InputError) as caught:
        sdk.plan("train.py")
    assert said in str(caught.value)
    assert "write `import podlift` for podlift's" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["def __getattr__(name): return 42", "from inner import *", "context = 1", "from inner import context"],
)
def test_what_the_projects_own_sdk_may_have_is_not_taken_for_podlifts(write, text: str) -> None:
    write("inner.py", "context = 1")
    write("sdk/__init__.py", text)
    write("train.py", "import sdk\nprint(sdk.context)")
    assert sdk.plan("train.py").own_names == ["sdk"]


def test_a_checkout_of_podlift_in_a_project_is_podlift(write) -> None:
    write("sdk/__init__.py", (REPO / "sdk" / "__init__.py").read_text())
    write("sdk/api.py", "")
    write("train.py", "import sdk\nprint(sdk.context().task)")
    run = sdk.submit("train.py")
    run.result(LIMIT_S)
    assert [line.text for line in run.logs()] == ["chief-0"]


def python(code: str, cwd: Path) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd), str(REPO), str(REPO / "sdk" / "published")])}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("first", ["sdk", "podlift"])
def test_both_names_are_one_package_whichever_is_imported_first(first: str, tmp_path: Path) -> None:
    code = f"""
import {first}
import importlib, pickle, sys
import podlift, sdk
assert sdk is podlift
for number, name in enumerate(["errors", "testing", "testing.plugin", "records.recorder", "cli.app", "drill"] * 2):
    order = ("sdk", "podlift") if number % 2 else ("podlift", "sdk")
    one, other = [importlib.import_module(f"{{top}}.{{name}}") for top in order]
    assert one is other and one.__name__ == one.__spec__.name == f"podlift.{{name}}", name
import sdk.testing.vertex
assert sdk.testing.vertex is podlift.testing.vertex
assert {{name.partition(".")[0] for name in sys.modules}} & {{"_podlift", "podlift_names"}} == set()
assert pickle.loads(pickle.dumps(sdk.errors.InputError("x"))).__class__ is podlift.InputError
assert pickle.loads(b"csdk.status\\nState\\n.") is podlift.State
"""
    assert python(code, tmp_path) == ""


@pytest.mark.parametrize("name", ["sdk", "podlift"])
def test_both_names_start_the_command_and_its_modules(name: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "sdk" / "published")])}
    for module, said in ((name, "Usage: podlift"), (f"{name}.ids", "")):
        command = [sys.executable, "-m", module, "--help"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd="/").stdout
        assert shown.startswith(said)
