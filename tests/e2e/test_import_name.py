"""`sdk` is podlift's import name, in a task and in the processes that it starts; a project with its own is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support import LIMIT_S, REPO, full_only

import sdk
from sdk.records.recorder import read_events

pytestmark = pytest.mark.process

# A project may have its own `podlift`: that name is nobody else's in a program.
CHILD = {
    "requirements.txt": "",
    "podlift/__init__.py": "VALUE = 42",
    "train.py": """
        import multiprocessing, pickle, subprocess, sys
        import podlift, sdk

        def child(queue):
            import sdk
            queue.put(isinstance(pickle.loads(pickle.dumps(sdk.InputError("x"))), sdk.PodliftError))

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            same = queue.get()
            process.join()
            said = subprocess.run([sys.executable, "-c", "import sdk; print(sdk.InputError.__module__)"], capture_output=True)
            assert said.stdout == b"sdk.errors\\n", said
            sdk.context().report({"value": podlift.VALUE, "same": same})
        """,
}


@pytest.fixture
def project(write: Callable[..., Path]) -> None:
    for path, text in CHILD.items():
        write(path, text)


@pytest.mark.parametrize("where", ["a task", full_only("a container")])
def test_a_task_and_its_child_processes_find_sdk_and_the_projects_own_podlift(project, request, where: str) -> None:
    backend = request.getfixturevalue("podlift_vertex").backend() if where == "a container" else "local"
    assert sdk.submit("train.py", backend=backend).result(LIMIT_S).metrics == {"value": 42, "same": 1}


def test_forked_tasks_find_sdk_before_another_one_on_the_path(write, tmp_path: Path, monkeypatch) -> None:
    # A `tensorflow` that is imported in no time, and a package of somebody else.
    for name in ("tensorflow", "keras", "sdk"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text("")
    write("train.py", "import tensorflow, sdk\nprint(sdk.context().task)")
    job = sdk.Job("train.py", env={"PYTHONPATH": str(tmp_path / "site")}, resources=sdk.Resources(workers=2))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    run = sdk.submit(job, local_start="fork")
    run.result(LIMIT_S)
    (started,) = read_events(run.plan.paths, ("attempt_started",))
    assert started.data["why_fresh"] == ""
    assert sorted(line.text for line in run.logs() if not line.text.startswith("podlift: ")) == ["chief-0", "worker-0"]


def test_a_checkout_of_podlift_in_a_project_is_podlift(write) -> None:
    write("sdk/__init__.py", (REPO / "sdk" / "__init__.py").read_text())
    write("sdk/api.py", "")
    write("train.py", "import sdk\nfrom sdk import api\nprint(sdk.context().task)")
    run = sdk.submit("train.py")
    run.result(LIMIT_S)
    assert [line.text for line in run.logs()] == ["chief-0"]
