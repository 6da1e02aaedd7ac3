"""podlift's lines are in a task's log once each, whatever the program does to `logging`, and a signal's handler may log."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from support import REPO, heard

from sdk import logs

pytestmark = pytest.mark.process

TASK = """
import logging, logging.config, os, signal, sys, threading, time
sys.path.insert(0, {repo!r})
from sdk import logs
early = logs.logger("checkpoint")
logs.start(errors_apart={apart})
{program}
late = logs.logger("runtime")
for logger in (early, late):
    logger.info("told by %s", logger.name)
"""
BOTH = ["podlift: told by podlift.checkpoint", "podlift: told by podlift.runtime"]


def run(program: str, *, apart: bool = False) -> subprocess.CompletedProcess[str]:
    text = TASK.format(repo=str(REPO), program=program, apart=apart)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    "program",
    [
        "",
        "logging.config.dictConfig({'version': 1, 'disable_existing_loggers': True, 'root': {'handlers': ['c'], 'level': 10},"
        " 'handlers': {'c': {'class': 'logging.StreamHandler'}}})",
        "logging.disable(logging.CRITICAL)",
        "logging.basicConfig()\n"
        "for name in list(logging.root.manager.loggerDict):\n"
        "    logging.getLogger(name).handlers.clear()\n"
        "    logging.getLogger(name).propagate = True",
        "logging.setLoggerClass(type('Theirs', (logging.Logger,), {'__slots__': ()}))",
        "sys.stderr = sys.__stderr__ = open(os.devnull, 'w')",
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 2)",
        "logging.shutdown()",
    ],
)
def test_no_configuration_of_logging_loses_or_doubles_a_line(program: str) -> None:
    assert run(program).stderr.splitlines() == BOTH


def test_absl_and_keras_leave_the_lines_alone() -> None:
    pytest.importorskip("absl.logging")
    theirs = "import absl.logging\nabsl.logging.use_absl_handler()\nabsl.logging.set_verbosity('debug')"
    assert run(theirs).stderr.splitlines() == BOTH


def test_a_program_that_closed_all_descriptors_finds_nothing_of_podlift_in_its_files(tmp_path) -> None:
    taken = f"os.closerange(3, 64)\nmine = [open({str(tmp_path)!r} + f'/{{n}}', 'w') for n in range(9)]"
    run(taken)
    assert len(list(tmp_path.iterdir())) == 9
    assert {path.read_text() for path in tmp_path.iterdir()} == {""}


def test_an_agent_tells_errors_apart_and_everything_else_on_the_standard_output() -> None:
    done = run("early.error('broken')", apart=True)
    assert done.stderr.splitlines() == ["podlift: broken"]
    assert done.stdout.splitlines() == BOTH


def test_a_handler_that_the_program_adds_to_podlift_gets_each_record_too() -> None:
    theirs = "theirs = logging.StreamHandler(sys.stdout)\nlogging.getLogger('podlift').addHandler(theirs)"
    done = run(theirs)
    assert done.stderr.splitlines() == BOTH
    assert done.stdout.splitlines() == [line.removeprefix("podlift: ") for line in BOTH]


def test_a_signal_handler_logs_while_every_thread_logs_and_no_line_is_torn() -> None:
    program = """
inside = []
def shout(*_):
    early.warning("from the handler")
    if not inside:  # a handler of logging's own, interrupted by itself, fails
        inside.append(1)
        logging.getLogger("theirs").warning("x")
        inside.clear()
signal.signal(signal.SIGALRM, shout)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
def fill():
    for number in range(4000):
        early.info("thread %d %s", number, "x" * 200)
threads = [threading.Thread(target=fill) for _ in range(3)]
for thread in threads: thread.start()
fill()
for thread in threads: thread.join()
signal.setitimer(signal.ITIMER_REAL, 0)
"""
    lines = [line for line in run(program).stderr.splitlines() if line != "x"]
    assert lines[-2:] == BOTH
    shouted = lines.count("podlift: from the handler")
    assert shouted > 20
    assert sorted(line for line in lines[:-2] if line != "podlift: from the handler") == sorted(
        f"podlift: thread {number} {'x' * 200}" for number in range(4000) for _ in range(4)
    )


def test_in_a_clients_process_the_loggers_are_ordinary_ones(caplog: pytest.LogCaptureFixture) -> None:
    lines = heard("drill")
    with caplog.at_level(logging.WARNING, logger="podlift"):
        logs.logger("checkpoint").warning("heard by the root")
        logs.logger("checkpoint").info("below the level")
        logs.logger("drill").info("heard by the room's listener")
    assert caplog.messages == ["heard by the root"]
    assert lines == ["heard by the room's listener"]


def test_a_client_without_logging_prints_nothing() -> None:
    program = f"import sys; sys.path.insert(0, {str(REPO)!r})\nfrom sdk import logs\nlogs.logger('drill').warning('x')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "")
