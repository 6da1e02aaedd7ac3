"""The messages of the command about mistakes and Ctrl-C: all of them, on one channel each, with the right exit code."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from support import LIMIT_S, full_only, holds

import sdk
from sdk.cli import app, look, start


def test_bad_input_is_one_message_with_code_2_and_no_traceback_of_ours(project, podlift, here, root: Path) -> None:
    words = (("status", "nothing-aaaaaa"), ("submit", "train.py", "--bogus"), ("x",))
    for shown in (podlift("submit"), *(here(*each) for each in words)):
        assert (shown.code, shown.stdout, "Traceback" in shown.stderr) == (2, "", False)
    assert not root.exists()


def test_all_mistakes_of_the_options_are_said_at_once(write, here) -> None:
    options = "--workers x --checkpoint-every soon --accelerator gpu9 --code-keras foo --code-project /nonexist"
    more = "--backend vertx --env 1B=2 --env TF_CONFIG=1 --input train --timeout soon --max-steps 0"
    shown = here("plan", "trian.py", *options.split(), "--name", "A B", *more.split())
    assert shown.code == 2
    holds(shown.stderr, "--workers: must be a number. Received: 'x'.", "gpu9", "code_keras", "'/nonexist'", "'A B'")
    holds(shown.stderr, "--checkpoint-every: must be a duration, a number of steps or both", "Did you mean 'vertex'?")
    holds(shown.stderr, "--input takes NAME=VALUE. Number 1 of 1 has no '='", "'1B'", "'TF_CONFIG'", "max_steps")
    assert "--timeout: must be a duration" in shown.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", "train.py", "--args", "{a}"), """--args: must be JSON, such as {"name": 3}. Received: '{a}'."""),
        (("plan", "train.py", "--args", "["), """--args: must be JSON, such as ["a", "b"]. Received: '['."""),
        (("preflight", "train.py"), "Which TPU should the program be checked for? Add --accelerator v5e-8. (No TPU"),
        (("diff", "a.json", "b.json"), "There is no file a.json, and no run of that name."),
        (("ui", "nowhere"), "The root is not a folder. Received: 'nowhere'. Next: podlift ui, for all roots."),
    ],
)
def test_a_mistake_is_said_with_the_next_step(project, here, words: tuple[str, ...], said: str) -> None:
    shown = here(*words)
    assert (shown.code, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"podlift: {said}")


def test_without_an_entry_the_options_are_checked_all_the_same(here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODLIFT_ENTRY", "")
    shown = here("plan", "--workers", "x", "--accelerator", "gpu9")
    assert shown.code == 2
    holds(shown.stderr, "No entry.", "--workers: must be a number", "gpu9")


def test_all_mistakes_of_the_variables_are_said_at_once(project, here, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"FOO": "1", "WORKERS": "x", "CODE_KERAS": "foo", "NAME": "A B", "LIMIT_GRACE": "-1"}.items():
        monkeypatch.setenv(f"PODLIFT_{name}", text)
    shown = here("plan", "train.py")
    assert shown.code == 2
    holds(shown.stderr, "Unknown setting PODLIFT_FOO", "PODLIFT_WORKERS: must be a number", "code_keras", "'A B'")
    assert "LIMIT_GRACE: must be" in shown.stderr


@pytest.mark.parametrize("text", ['{"Q":"hunter2"', '["hunter2"]', '{"1Q": "hunter2"}', '{"Q": ["hunter2"]}'])
def test_values_of_variables_for_the_tasks_are_never_quoted(project, here, monkeypatch, text: str) -> None:
    monkeypatch.setenv("PODLIFT_ENV", text)
    shown = here("plan", "train.py", "--json")
    assert shown.code == 2
    assert "env" in shown.stderr.lower()
    monkeypatch.delenv("PODLIFT_ENV")
    more = here("plan", "train.py", "--json", "--env", "hunter2", "--env", "1Q=hunter2", "--env", "TF_CONFIG=hunter2")
    assert more.code == 2
    assert "hunter2" not in "".join((shown.stdout, shown.stderr, more.stdout, more.stderr))


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "--json", "train.py", "--nosuch"),
        ("plan", "--json", "trian.py"),
        ("status", "--json", "nothing-aaaaaa"),
        ("list", "--json", "--limit", "x"),
        ("--json",),
    ],
)
def test_a_mistake_with_json_is_one_object_on_one_line_of_stdout(project, here, words: tuple[str, ...]) -> None:
    shown = here(*words)
    (line,) = shown.stdout.splitlines()
    found = json.loads(line)
    assert (shown.code, found["exit_code"], found["reason"]) == (2, 2, "bad_input")
    assert found["problems"] and all(found["problems"]) and shown.stderr
    assert here("plan", "trian.py", "--", "--json").stdout == "", "behind the dashes, it is the program's"


@pytest.mark.parametrize(
    ("verb", "option", "said"),
    [
        ("submit", "--epochs", "Arguments for the program go after --: podlift submit train.py -- --epochs ..."),
        ("submit", "--gpus", "Arguments for the program go after --: podlift submit train.py -- --gpus ..."),
        ("plan", "-zoom", "Arguments for the program go after --: podlift plan train.py -- -zoom ..."),
        ("plan", "-workers", "No such option: -workers. Did you mean --workers?"),
        ("submit", "--worker=2", "No such option: --worker. Did you mean --workers?"),
        ("list", "--limits", "No such option: --limits. Did you mean --limit?"),
    ],
)
def test_an_unknown_option_is_one_of_podlifts_or_the_programs(project, here, verb: str, option: str, said: str) -> None:
    shown = here(verb, "train.py", option, "3")
    assert (shown.code, said in shown.stderr) == (2, True)
    assert ("Did you mean" in shown.stderr) != ("Arguments for the program" in shown.stderr)


def test_an_entry_that_is_named_leaves_all_words_to_the_program(project, here, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (("--entry", "train.py", "--", "--epochs", "3"), ("train.py", "--", "--epochs", "3")):
        assert json.loads(here("plan", "--json", *words).stdout)["argv"] == ["--epochs", "3"]
    monkeypatch.setenv("PODLIFT_ENTRY", "train.py")
    found = json.loads(here("plan", "--json", "--", "--epochs", "3").stdout)
    assert (found["target"], found["argv"]) == ("train.py", ["--epochs", "3"])
    monkeypatch.setenv("PODLIFT_ENTRY", "other.py")
    assert here("plan", "--entry", "train.py").code == 0


def test_an_internal_error_shows_its_traceback_and_a_machine_that_refuses_one_line(here, monkeypatch) -> None:
    raised: list[Exception] = [ZeroDivisionError("oh")]

    def broken(*_: object) -> None:
        raise raised[0]

    monkeypatch.setattr(look.api, "list_runs", broken)
    shown = here("list", "--json")
    assert (shown.code, "Traceback" in shown.stderr) == (3, True)
    assert shown.stderr.endswith("podlift: internal error: ZeroDivisionError: oh\n")
    assert json.loads(shown.stdout)["problems"] == ["internal error: ZeroDivisionError: oh"]
    raised[0] = PermissionError(13, "Permission denied", "/somewhere")
    assert here("list") == (3, "", "podlift: PermissionError: [Errno 13] Permission denied: '/somewhere'\n")


@pytest.mark.parametrize(
    ("module", "function", "words"),
    [(look.api, "list_runs", ("list",)), (start.launch, "submit", ("submit", "train.py"))],
)
def test_ctrl_c_in_any_verb_is_a_short_line_with_code_130(project, here, monkeypatch, module, function, words) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, function, pressed)
    shown = here(*words)
    assert (shown.code, "Traceback" in shown.stderr) == (130, False)
    assert shown.stderr.splitlines()[-1].startswith("podlift: interrupted.")


def test_ctrl_c_while_the_command_loads_is_a_short_line_with_code_130(podlift, environment, tmp_path: Path) -> None:
    swallowed = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt: pass\n"
    (tmp_path / "typer.py").write_text(swallowed)
    shown = podlift("list", PYTHONPATH=f"{tmp_path}:{environment()['PYTHONPATH']}")
    assert shown == (130, "", "podlift: interrupted.\n")


def test_ctrl_c_leaves_the_logs_with_code_130(here, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pressed:
        plan = type("", (), {"tasks": ("chief-0",)})

        def logs(self, **_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(look.api, "attach", lambda *_, **__: Pressed())
    assert here("logs", "x") == (130, "", "Stopped printing the logs. The run is not affected.\n")


def test_letters_that_the_terminal_lacks_do_not_end_the_logs(write, podlift) -> None:
    write("train.py", "import sys; sys.stdout.buffer.write('prêt ✓\\n'.encode())")
    run = sdk.submit("train.py")
    run.wait(LIMIT_S)
    shown = podlift("logs", run.id, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (shown.code, "pr\\xeat \\u2713" in shown.stdout) == (0, True)


def test_a_full_disk_under_stdout_is_one_line_with_code_3(project, podlift) -> None:
    shown = podlift("plan", "train.py", "--json", shell=">/dev/full")
    assert (shown.code, shown.stderr) == (3, "podlift: OSError: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("shell", ["2>&-", full_only("2>/dev/full")])
def test_words_for_people_never_go_to_stdout(project, podlift, shell: str) -> None:
    shown = podlift("submit", "train.py", "--json", shell=shell)
    assert shown.code == 0
    assert json.loads(shown.stdout)["state"] == "SUCCEEDED"


def test_a_closed_stdout_is_no_error_and_a_word_that_is_no_text_raises_none(podlift) -> None:
    assert podlift("list", shell=">&-") == (0, "", "")
    assert app.run(["\ud800", "--json"]) == 2


WAYS = {"module": [sys.executable, "-m", "sdk"], "script": [f"{sysconfig.get_path('scripts')}/podlift"]}
# Presses Ctrl-C at one of the steps that Python's audit events show after podlift's first file was opened.
HOOK = """
import os, signal, sys
steps, begun = int(os.environ["STEP"]), False
def hook(event, arguments):
    global steps, begun
    begun = begun or (event == "exec" and arguments[0].co_filename.endswith("/interrupts.py"))
    if not begun or event not in ("import", "exec", "open"):
        return
    steps -= 1
    if steps == 0:
        os.kill(os.getpid(), signal.SIGINT)
if steps > 0:
    sys.addaudithook(hook)
else:
    import atexit
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
"""
LAST = 0
ALWAYS = {("module", 2), ("script", 40), ("module", 700), ("script", LAST)}


@pytest.fixture
def pressed(tmp_path: Path, environment: Callable[..., dict[str, str]]) -> Callable[[str, int], tuple[int, str]]:
    """Run `podlift --version`, press Ctrl-C at a step, and return the exit code and what stderr shows."""
    (tmp_path / "sitecustomize.py").write_text(HOOK)

    def press(way: str, step: int) -> tuple[int, str]:
        variables = environment(STEP=str(step))
        variables["PYTHONPATH"] = f"{tmp_path}:{variables['PYTHONPATH']}"
        words = [*WAYS[way], "--version"]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=LIMIT_S)
        return done.returncode, done.stderr

    return press


EACH = list(product(WAYS, (LAST, 2, 3, 6, 14, 30, 40, 60, 100, 220, 400, 700)))


@pytest.mark.process
@pytest.mark.parametrize(("way", "step"), [each if each in ALWAYS else full_only(*each) for each in EACH])
def test_ctrl_c_at_any_step_of_a_start_is_one_sentence_with_code_130(pressed, way: str, step: int) -> None:
    assert pressed(way, step) == (130, "podlift: interrupted.\n")
