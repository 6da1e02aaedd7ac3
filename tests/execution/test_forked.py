"""A task is forked from a process that has imported its modules, already in the first attempt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from .cloud import Cloud

Fake = Callable[[str], dict[str, str]]
PROGRAM = "import os, sdk, tensorflow\nprint('ran', sdk.context().task, os.environ['PODLIFT_TASK'], flush=True)"


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """The file to which each import of the fake TensorFlow adds one letter."""
    return tmp_path / "count"


@pytest.fixture
def fake(tmp_path: Path, counted: Path) -> Fake:
    """Return the variables with which a module of this text is TensorFlow."""
    place = tmp_path / "fake"
    place.mkdir()
    counted.touch()

    def make(text: str = "") -> dict[str, str]:
        (place / "tensorflow.py").write_text(f"open({str(counted)!r}, 'a').write('x')\n{text}\n")
        return {"PYTHONPATH": f"{place}:{':'.join(path for path in sys.path if path.endswith('site-packages'))}"}

    return make


def test_a_tasks_modules_are_imported_once_and_while_others_are_awaited(cloud: Cloud, write, fake, counted) -> None:
    write("train.py", PROGRAM)
    plan = cloud.plan("train.py", resources={"workers": 2})
    words, env = cloud.order(plan, preload=["tensorflow"]), fake()
    chief = cloud.start(plan, words, **env)
    cloud.until(lambda: counted.read_text(), "an import", chief)
    assert not cloud.events(plan, "attempt_started")
    worker = cloud.start(plan, words, "worker-0", **env)
    assert (chief.code(), worker.code()) == (0, 0), chief.said + worker.said
    assert "ran chief-0 chief-0" in chief.said and "ran worker-0 worker-0" in worker.said
    assert counted.read_text() == "xx"


def test_a_container_that_is_stopped_while_it_waits_leaves_no_process_behind(cloud: Cloud, write, fake: Fake) -> None:
    write("train.py", PROGRAM)
    plan = cloud.plan("train.py", resources={"workers": 2})
    chief = cloud.start(plan, cloud.order(plan, preload=["tensorflow"]), **fake("import time; time.sleep(60)"))
    cloud.until(lambda: "waiting for worker-0" in chief.said, "a wait", chief)
    known = psutil.Process(chief.process.pid).children(recursive=True)
    assert known
    chief.process.terminate()
    assert chief.code() == 134, chief.said
    assert list(cloud.folder.glob("tmp-0/*")) == []
    assert psutil.wait_procs(known, timeout=20)[1] == []


@pytest.mark.full
def test_a_task_that_cannot_be_forked_starts_by_itself_and_ends_later_preloads(cloud, write, fake, counted) -> None:
    steps = "import time\nfor step in range(25): sdk.context().report({'step': step}, step=step); time.sleep(0.1)"
    write("train.py", f"{PROGRAM}\n{steps}")
    plan = cloud.plan("train.py")
    thread = "import threading, time; threading.Thread(target=time.sleep, args=[600], daemon=True).start()"
    container = cloud.start(plan, cloud.order(plan, preload=["tensorflow"]), **fake(thread))
    assert container.code() == 0, container.said
    assert container.said.count("the task was not forked: 2 threads") == 1
    assert counted.read_text() == "xx"
