"""Runs the tests in several forks of the process that has collected them: `pytest --workers 4`.

Workers that are started anew, as those of pytest-xdist, import and collect everything again, each of them for many CPU seconds.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
from tiers import enter_worker, group_of

_LOST = "the worker process that ran this test has ended"
_LOST_AT_END = "a worker process ended with {} while it removed what its tests had shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, metavar="N", help="run the tests in N forks of this process")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Hand out the groups of tests one by one, in the order of collection."""
    config = session.config
    if not config.getoption("--workers") or config.option.collectonly or session.testsfailed:
        return None
    groups = [list(each) for _, each in groupby(session.items, key=lambda item: group_of(item.nodeid))]
    _Workers(session, groups).run(config.getoption("--workers"))
    for reason, error in ((session.shouldfail, session.Failed), (session.shouldstop, session.Interrupted)):
        if reason:
            raise error(reason)
    return True


# --- In the process that has collected --------------------------------------------------------------------------------


class _Workers:
    """The forks. Each sends hooks' names with arguments while it runs a group, () for another group, and text to fail all."""

    def __init__(self, session: pytest.Session, groups: Sequence[list[pytest.Item]]) -> None:
        self._session, self._config = session, session.config
        self._waiting = deque(groups)
        self._index = {item: index for index, item in enumerate(session.items)}
        self._count = 0
        self._pids: dict[Connection, int] = {}
        self._given: dict[Connection, list[pytest.Item]] = {}
        reporter: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:  # reports of several files come mixed
            reporter.showfspath = False

    def run(self, count: int) -> None:
        try:
            while self._pids or self._is_waiting():
                while self._is_waiting() and len(self._pids) < count:
                    self._start()
                for connection in wait([*self._pids]):
                    assert isinstance(connection, Connection)
                    try:
                        self._hear(connection, connection.recv())
                    except EOFError:
                        self._end(connection)
        finally:
            for connection in self._pids:
                connection.close()

    def _is_waiting(self) -> bool:
        return bool(self._waiting) and not (self._session.shouldfail or self._session.shouldstop)

    def _start(self) -> None:
        here, there = Pipe()
        self._count += 1
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            here.close()
            for connection in self._pids:
                connection.close()
            _work(self._session, there, f"w{self._count}")
        there.close()
        self._pids[here], self._given[here] = pid, []
        self._give(here)

    def _give(self, connection: Connection) -> None:
        group = self._waiting.popleft() if self._is_waiting() else []
        self._given[connection] = group
        with suppress(OSError):  # it has ended: what follows is the end of the connection
            connection.send([self._index[item] for item in group])

    def _hear(self, connection: Connection, message: Any) -> None:
        if isinstance(message, str):
            self._session.shouldfail = message
            return None
        if not message:
            return self._give(connection)
        (name, given), hook = message, self._config.hook
        if name == "pytest_runtest_logreport":
            given = {"report": hook.pytest_report_from_serializable(config=self._config, data=given)}
        elif name == "pytest_runtest_logfinish":
            self._given[connection] = [item for item in self._given[connection] if item.nodeid != given["nodeid"]]
        elif name == "pytest_warning_recorded":
            return hook.pytest_warning_recorded.call_historic(kwargs=given)
        getattr(hook, name)(**given)
        return None

    def _end(self, connection: Connection) -> None:
        """Fail the test during which a worker has ended, and hand out the others of its group again."""
        connection.close()
        _, status = os.waitpid(self._pids.pop(connection), 0)
        left, code = self._given.pop(connection), os.waitstatus_to_exitcode(status)
        if self._session.shouldfail or self._session.shouldstop:
            return
        if not left:
            self._session.shouldfail = _LOST_AT_END.format(code) if code else False
            return
        item, *others = left
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", _LOST, "call")
        self._config.hook.pytest_runtest_logreport(report=report)
        if others:
            self._waiting.appendleft(others)


# --- In a fork --------------------------------------------------------------------------------------------------------


class _Relay:
    """Sends what the terminal shows to the process that has collected."""

    def __init__(self, config: pytest.Config, send: Callable[[object], None]) -> None:
        self._config, self._send = config, send

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send(("pytest_runtest_logreport", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: object) -> None:
        self._send(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: object
    ) -> None:
        seen = warning_message
        plain = warnings.WarningMessage(str(seen.message), seen.category, seen.filename, seen.lineno)  # type: ignore[arg-type]
        given = {"warning_message": plain, "when": when, "nodeid": nodeid, "location": location}
        self._send(("pytest_warning_recorded", given))


def _work(session: pytest.Session, connection: Connection, name: str) -> None:
    """Run the groups of tests that come, and end this process."""
    code = 1
    try:
        _become_worker(session.config, connection, name)
        while indices := connection.recv():
            _run_group(session, [session.items[index] for index in indices])
            if session.shouldfail or session.shouldstop:
                break
            connection.send(())
        session._setupstate.teardown_exact(None)
        code = 0
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        with suppress(BaseException):
            session._setupstate.teardown_exact(None)
    except BaseException:
        connection.send(traceback.format_exc())
    finally:
        os._exit(code)


def _become_worker(config: pytest.Config, connection: Connection, name: str) -> None:
    plugins, folders = config.pluginmanager, config._tmp_path_factory  # type: ignore[attr-defined]
    plugins.unregister(name="terminalreporter")
    plugins.register(_Relay(config, connection.send))
    capture: Any = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # the file that takes the output is another process's, too
    capture.start_global_capturing()
    folders._basetemp = folders.getbasetemp() / name
    folders._basetemp.mkdir(mode=0o700)
    enter_worker(config)


def _run_group(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    # Of what follows the last test of a group, it is only known that it shares the session's fixtures.
    for item, following in zip(items, [*items[1:], session], strict=True):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail or session.shouldstop:
            return
