"""Contract tests for every backend. Needs pytest.

Usage: `class TestMine(BackendContract): name = "mine"`, and a fixture `where` if submitting needs more than a root.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .. import api, backends
from ..clock import SystemClock
from ..errors import RunFailedError
from ..run import Run
from ..status import Reason, State


class BackendContract:
    """Inherit, and set `name` to the value of `backend=`; `limit_s` is the longest time that a run may take, in seconds."""

    name = ""
    limit_s = 120.0

    @pytest.fixture
    def where(self, tmp_path: Path) -> dict[str, Any]:
        """Return the keywords of `submit` that select the backend and the root."""
        return {"backend": self.name, "root": tmp_path / "contract-root"}

    @pytest.fixture
    def submit(
        self, where: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[..., Run]]:
        """Return a function that submits a program's text; runs still active at the end are cancelled."""
        started: list[Run] = []
        project = tmp_path / "contract"
        project.mkdir()
        monkeypatch.chdir(project)

        def start(text: str, workers: int = 1) -> Run:
            (project / "program.py").write_text(text)
            run = api.submit("program.py", workers=workers, **where)
            started.append(run)
            return run

        yield start
        for run in started:
            run.cancel(grace_s=0)
            run.wait(self.limit_s)

    def test_render_is_pure_and_printable(self, where: dict[str, Any], submit: Callable[..., Run]) -> None:
        Path("program.py").write_text("print(1)")
        plan = api.plan("program.py", workers=2, **where)
        backend = backends.load(self.name)
        once, twice = backend.render(plan).body, backend.render(plan).body
        assert json.loads(json.dumps(once)) == twice

    def test_success_is_the_first_task_leaving_with_0_and_looks_the_same_to_anybody(
        self, submit: Callable[..., Run]
    ) -> None:
        run = submit("import os; print('from', os.environ['PODLIFT_TASK'])", workers=2)
        backend = backends.load(self.name)
        # Started twice, it starts once.
        backend.start(backend.render(run.plan))
        ended = run.wait(self.limit_s)
        assert (ended.state, ended.reason, ended.exit_code) == (State.SUCCEEDED, Reason.DONE, 0)
        other = api.attach(run.url)
        assert (other.status(), ended.attempts) == (ended, 1)
        for task in run.plan.tasks:
            assert [line.text for line in other.logs(task=task)].count(f"from {task}") == 1
        assert run.id in [info.id for info in api.runs(root=run.plan.root)]
        handle = backend.open(run.plan, SystemClock())
        handle.refresh()
        assert not handle.supervised()

    def test_a_failure_has_the_programs_traceback_and_is_resumed_as_another_attempt(
        self, submit: Callable[..., Run]
    ) -> None:
        text = "import os\nprint('attempt', os.environ['PODLIFT_ATTEMPT'], flush=True)\n"
        deep = "def deep():\n    raise KeyError('column')\nif os.environ['PODLIFT_ATTEMPT'] == '1': deep()"
        run = submit(text + deep)
        with pytest.raises(RunFailedError, match="column") as caught:
            run.result(self.limit_s)
        assert "in deep" in str(caught.value)
        assert caught.value.exit_code == 1
        run.resume()
        assert run.wait(self.limit_s).state is State.SUCCEEDED
        assert run.status().attempts == 2
        assert [line.text for line in run.logs() if line.text.startswith("attempt")] == ["attempt 1", "attempt 2"]

    def test_what_a_program_returns_and_leaves_comes_back_and_following_ends_with_it(
        self, where: dict[str, Any], submit: Callable[..., Run], tmp_path: Path
    ) -> None:
        text = "import time\ndef main(n):\n    open('left.txt', 'w').write('x' * n)\n"
        loop = "    for i in range(5): print(i, flush=True); time.sleep(0.05)\n    return {'n': n}"
        Path("program.py").write_text(text + loop)
        run = api.submit("program:main", args={"n": 3}, **where)
        assert [line.text for line in run.logs(follow=True)] == list("01234")
        assert run.status().state.terminal
        assert run.result(self.limit_s).value == {"n": 3}
        run.download(tmp_path / "home")
        assert (tmp_path / "home" / "work" / "left.txt").read_text() == "xxx"

    def test_cancel_returns_at_once_is_idempotent_and_final(self, submit: Callable[..., Run]) -> None:
        run = submit("import time; time.sleep(600)", workers=2)
        start = time.monotonic()
        run.cancel(grace_s=0)
        run.cancel(grace_s=0)
        assert time.monotonic() - start < self.limit_s / 2
        assert run.wait(self.limit_s).state is State.CANCELLED
        run.cancel()
        assert run.status().exit_code == 4
