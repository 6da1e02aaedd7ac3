"""Completion at a shell's Tab: the proposals, their speed, and the real bash, zsh and fish."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import LIMIT_S, REPO, full_only, holds

import sdk
from sdk.cli import completion, shells
from sdk.cli.verbs import MODULES
from sdk.hardware import accelerators
from sdk.records import named

pytestmark = pytest.mark.process


@pytest.fixture
def runs(root: Path) -> list[str]:
    """Folders of three runs, newest first."""
    names = ["digits-cccccc", "mnist-bbbbbb", "digits-aaaaaa"]
    for age, name in enumerate(names):
        folder = root / "runs" / name
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps({"tasks": ["chief-0", "worker-0"]}))
        os.utime(folder, (1e9 - age, 1e9 - age))
    return names


@pytest.fixture
def complete(root: Path) -> Callable[..., list[str]]:
    """Ask as a script does: `complete("status", "dig")`."""
    return lambda *words, **environ: completion.candidates(words, {"PODLIFT_ROOT": str(root), **environ})


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A folder with the command `podlift` in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "podlift").write_text(f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -m sdk "$@"\n')
    (folder / "podlift").chmod(0o755)
    return folder


def test_verbs_are_completed(complete) -> None:
    assert complete("") == list(MODULES)
    assert complete("schedule", "simu") == ["simulate"]
    assert complete("schedule", "simulate", "--overlap", "re") == ["replace"]
    assert complete("s") == ["submit", "status", "sweep", "schedule"]
    assert complete("--i") == ["--install-completion"]
    assert complete("--show-completion", "") == ["bash", "zsh", "fish"]
    assert complete("nothing", "") == []
    assert complete("init", "") == ["vertex"]


def test_schedules_of_this_machine_and_of_a_known_bucket_are_completed(complete, root, tmp_path) -> None:
    (root / "schedules" / "specs").mkdir(parents=True)
    (root / "schedules" / "specs" / "weekly.json").write_text("{}")
    (tmp_path / "podlift" / "schedules").mkdir(parents=True)
    (tmp_path / "podlift" / "schedules" / "daily").touch()
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert complete("schedule", "status", "", **cache) == ["daily", "weekly"]
    assert complete("schedule", "status", "--limit", "3", "we", **cache) == ["weekly"]
    assert complete("schedule", "list", "daily", "--check", "we", **cache) == ["weekly"]
    assert complete("schedule", "create", "d", **cache) == ["daily"]
    assert complete("schedule", "create", "daily", "", **cache) == [":files"]
    assert complete("schedule", "create", "--file", "", **cache) == [":files"]
    assert complete("schedule", "create", "--file", "all.toml", "", **cache) == [], "it stands for the name"
    assert complete("schedule", "create", "--file=all.toml", "d", **cache) == []


def test_sweeps_are_completed_also_those_of_a_bucket_that_this_machine_has_seen(
    complete, root, tmp_path, monkeypatch
) -> None:
    (root / "sweeps" / "specs").mkdir(parents=True)
    (root / "sweeps" / "specs" / "digits.json").write_text("{}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    named.remember("sweep", ["odd/one", "far"], "gs://bucket/podlift")
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    for verb in ("status", "best", "cancel", "resume"):
        assert complete("sweep", verb, "", **cache) == ["digits", "far"]
    assert complete("sweep", "status", "--journal", "j.log", "d", **cache) == ["digits"]
    assert complete("export", "html", "d", **cache) == ["digits"]


def test_models_and_their_versions_are_completed(complete, runs: list[str], root: Path) -> None:
    for name, numbers in {"digits": (1, 2, 10), "mnist": (1,)}.items():
        (root / "models" / "records" / name / "versions").mkdir(parents=True)
        for number in numbers:
            (root / "models" / "records" / name / "versions" / f"{number:06d}.json").touch()
    assert complete("models", "promote", "") == ["digits", "mnist"]
    assert complete("models", "status", "digits", "") == ["champion", "latest", "10", "2", "1"]
    assert complete("diff", "digits:1", "--root", str(root), "digits:ch") == ["digits:champion"]
    assert complete("get", "mn") == ["mnist-bbbbbb", "mnist:champion"]
    assert complete("get", "digits:1") == ["digits:10", "digits:1"]
    assert complete("get", "mnist:1", "") == [":files"]
    assert complete("models", "promote", "none", "") == []
    assert complete("models", "promote", "--previous", "di") == ["digits"]
    assert complete("models", "promote", "digits", "--previous", "") == [], "it stands for the version"
    assert complete("models", "add", "mn") == ["mnist-bbbbbb"]


def test_runs_are_completed_newest_first(complete, runs: list[str], root: Path, tmp_path: Path) -> None:
    assert complete("status", "") == [*runs, "latest"]
    assert complete("status", "dig") == ["digits-cccccc", "digits-aaaaaa"]
    assert complete("logs", "-f", "mn") == ["mnist-bbbbbb"]
    assert complete("logs", "--lines", "3", "l") == ["latest"]
    assert complete("get", "mnist-bbbbbb", "") == [":files"]
    assert complete("wait", "./x") == [":files"]
    assert complete("diff", "digits-aaaaaa", "m") == ["mnist-bbbbbb"]
    assert complete("submit", "--checkpoint-resume-from", "dig") == ["digits-cccccc", "digits-aaaaaa"]
    assert complete("export", "m") == ["md", "mlflow"]
    assert complete("export", "html", "mnist-bbbbbb", "-o", "x.html", "l") == ["latest"]
    assert complete("logs", "mnist-bbbbbb", "--task", "w") == ["worker-0"]
    assert complete("status", "--root", str(tmp_path / "nowhere"), "") == []
    assert complete("status", "--root", str(root), "m", PODLIFT_ROOT="/nowhere") == ["mnist-bbbbbb"]


def test_the_root_of_the_projects_file_is_where_runs_are_looked_for(complete, runs: list[str], write, root) -> None:
    write("podlift.toml", 'root = "mine"\n')
    (Path("mine") / "runs" / "own-aaaaaa").mkdir(parents=True)
    Path("deep").mkdir()
    os.chdir("deep")
    assert completion.candidates(["status", "o"], {}) == ["own-aaaaaa"]
    assert complete("status", "o") == []
    assert completion.candidates(["status", "o"], {"PODLIFT_ROOT": "gs://bucket/podlift"}) == [], "no cloud is asked"


def test_options_and_their_values_are_completed(complete) -> None:
    assert complete("submit", "--accelerator", "l4") == [name for name in accelerators.names() if name.startswith("l4")]
    assert complete("submit", "--accelerator=l4:") == ["--accelerator=l4:2", "--accelerator=l4:4", "--accelerator=l4:8"]
    assert complete("submit", "--backend", "") == ["local", "vertex", "ray", "kubernetes"]
    assert complete("submit", "--checkpoint-on-busy", "b") == ["block"]
    assert complete("list", "--state", "run") == ["running"]
    assert complete("accelerators", "--region", "us-central") == ["us-central1"]
    assert complete("submit", "--checkpoint-ev") == ["--checkpoint-every"]
    assert complete("wait", "x", "--ti") == ["--timeout"]
    assert complete("submit", "--timeout-") == []
    for words in (("--code-project", ""), ("",), ("--detach", "tr"), ("t.py", "--", "-")):
        assert complete("submit", *words) == [":files"]
    assert complete("list", "") == []


def test_ids_of_runs_are_there_at_once_and_nothing_heavy_is_loaded(root: Path, runs: list[str]) -> None:
    heavy = ("tensorflow", "keras", "pydantic", "typer", "rich", "google", "sdk.api", "sdk.backends.", "sdk.planning")
    code = (
        "import sys\nbare = set(sys.modules)\nfrom sdk.cli import main\nmain()\n"
        f"print([m for m in set(sys.modules) - bare if m.startswith({heavy!r})], file=sys.stderr)"
    )
    environ = {**os.environ, "PYTHONPATH": str(REPO), "_PODLIFT_COMPLETE": "fish", "PODLIFT_ROOT": str(root)}
    asked = [sys.executable, "-c", code, "status", "digits-a"]
    shown = subprocess.run(asked, capture_output=True, text=True, check=True, env=environ)
    assert (shown.stdout, shown.stderr) == ("digits-aaaaaa\n", "[]\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("podlift st", "status\n"),
        full_only("PODLIFT_X=1 bin/podlift status 'mn", ""),
        ("A=1 bin/podlift status mn", "mnist-bbbbbb\n"),
        # The text before a break is there already.
        ("podlift submit --accelerator l4:", "2\n4\n8\n"),
        full_only("podlift submit --accelerator=l4:", "2\n4\n8\n"),
        ("podlift submit ", ":files\n"),
        full_only('podlift status "', ""),
    ],
)
def test_bash_asks_with_its_whole_line(podlift, runs: list[str], line: str, said: str) -> None:
    assert podlift(line, _PODLIFT_COMPLETE="bash") == (0, said, "")


def terminal_of(home: Path, command: Path, root: Path) -> dict[str, str]:
    return {"HOME": str(home), "PATH": f"{command}:/usr/bin:/bin", "PODLIFT_ROOT": str(root), "TERM": "dumb"}


def installed(environ: dict[str, str], *shell: str) -> str:
    """Install the completion, and return what the command says."""
    line = ["podlift", "--install-completion", *shell]
    return subprocess.run(line, env=environ, capture_output=True, text=True, check=True).stderr


def typed(shell: list[str], environ: dict[str, str], keys: str, until: str) -> str:
    """Return the output of a terminal when these keys are pressed in a shell, once `until` is there."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe(shell[0], shell, environ)
    shown, sent, end = "", False, time.monotonic() + LIMIT_S
    try:
        while until not in shown and time.monotonic() < end:
            if select.select([terminal], [], [], 0.2)[0]:
                shown += os.read(terminal, 4096).decode(errors="replace")
            elif not sent and "READY" in shown:
                os.write(terminal, keys.encode())
                sent = True
    except OSError:
        pass
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown


def test_an_interactive_bash_takes_the_installed_completion(command: Path, runs, root, tmp_path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text("# mine")
    environ = terminal_of(home, command, root) | {"PS1": "READY"}
    for _ in range(2):
        said = installed(environ, "bash")
    holds(said, "Completion for bash is installed", "Next: start a new shell.")
    assert (home / ".bashrc").read_text().splitlines() == ["# mine", f"source {home}/.bash_completions/podlift.sh"]
    with (home / ".bashrc").open("a") as file:
        file.write("PS1=READY\n")
    shell = ["bash", "--rcfile", str(home / ".bashrc"), "-i"]
    assert "status mnist-bbbbbb" in typed(shell, environ, "podlift status mn\t", "mnist-bbbbbb")
    assert "--accelerator h100-mega:8" in typed(shell, environ, "podlift submit --accelerator h100-\t", "mega:8")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_an_interactive_zsh_takes_the_installed_completion(command: Path, runs, root, tmp_path) -> None:
    environ = terminal_of(tmp_path, command, root)
    installed(environ, "zsh")
    lines = (tmp_path / ".zshrc").read_text()
    assert lines == "fpath+=~/.zfunc; autoload -Uz compinit; compinit\n"
    (tmp_path / ".zshrc").write_text(lines.replace("compinit\n", "compinit -u\n") + "PS1=READY\n")
    assert "mnist-bbbbbb" in typed(["zsh", "-i"], environ, "podlift status mn\t", "mnist-bbbbbb")


@pytest.mark.full
@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish_takes_the_installed_completion(command: Path, runs, root: Path, tmp_path: Path) -> None:
    environ = terminal_of(tmp_path, command, root) | {"SHELL": "/usr/bin/fish"}
    installed(environ)
    Path(tmp_path, "train.py").write_text("")
    known = {"status mn": "mnist-bbbbbb", "submit --accelerator l4:": "l4:2\nl4:4\nl4:8", "submit tr": "train.py"}
    for line, said in known.items():
        asked = ["fish", "-c", f"complete -C 'podlift {line}'"]
        assert subprocess.run(asked, env=environ, capture_output=True, text=True, cwd=tmp_path).stdout.strip() == said


def test_the_rest_of_a_shells_file_stays_byte_by_byte(tmp_path: Path) -> None:
    mine = b'alias a="\xe9"\r\n# mine'
    (tmp_path / ".bashrc").write_bytes(mine)
    for changed in (2, 1):
        assert len(shells.install("bash", tmp_path, {})) == changed
    line = f"source {tmp_path}/.bash_completions/podlift.sh".encode()
    assert (tmp_path / ".bashrc").read_bytes() == mine + b"\n" + line + b"\n"


def test_a_shell_without_completion_is_named(here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    shown = here("--install-completion")
    needs = "podlift: Completion needs the name of a shell. Received: 'tcsh'. Known: bash, zsh, fish.\n"
    assert (shown.code, shown.stderr) == (2, needs)
    monkeypatch.delenv("SHELL")
    assert "Known: bash, zsh, fish." in here("--show-completion").stderr
    assert here("--show-completion", "zsh").stdout.startswith("#compdef podlift\n")


def test_every_value_that_is_proposed_is_one_that_the_command_accepts(project, complete) -> None:
    for name in complete("plan", "--code-keras", ""):
        assert sdk.plan("train.py", code_keras=name) is not None  # type: ignore[arg-type]
