"""The tutorial and the how-to guides, done word for word in a separate folder."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from documents import Example, Shell, examples, missing
from support import LONG_LIMIT_S, REPO, full_only, until

import sdk

HOW_TO = sorted(path.name for path in (REPO / "docs" / "how-to").glob("*.md"))


def runs(name: str) -> bool:
    """True if a guide has something to run."""
    found = examples(REPO / "docs" / "how-to" / name)
    return any(each.kind in ("console", "python") and not each.mark.startswith(("not", "only")) for each in found)


# Left to the full run: tests of the command show the same, not word for word.
_FULL = (
    "ci", "data", "first-hour", "first-schedule", "follow-a-run", "from-custom-jobs", "from-keras-tuner",
    "from-ray-train", "from-tensorflow-cloud", "from-tf-config", "restarts", "run-a-program", "schedules", "sweeps",
    "tidy-up", "troubleshooting",
)  # fmt: skip
# A program without TensorFlow, in place of the reader's own `train.py`.
PROGRAM = """
import sdk
ctx = sdk.context()
for step in range(1, 6):
    ctx.report({"loss": 1.0 / step}, step=step)
open("log.csv", "w").write("done")
print("trained")
"""
FLAKY = "import os; assert os.environ['PODLIFT_ATTEMPT'] > '1', 'the first attempt fails'"
CLOUD_PAGES = ("vertex.md", "from-custom-jobs.md", "from-tensorflow-cloud.md")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PODLIFT_", "XDG_"))}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    env = {**kept, "PATH": path, "HOME": str(tmp_path), "PYTHONPATH": str(REPO)}
    (tmp_path / "project").mkdir()
    found = Shell(tmp_path / "project", env)
    yield found
    found.close()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder with a short name: pages show a terminal of 80 columns, where a long one breaks lines."""
    with tempfile.TemporaryDirectory(prefix="d-") as folder:
        yield Path(folder)


@pytest.fixture
def background(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.terminate()
        process.wait()
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()


def wait_for_step(shell: Shell, step: int) -> None:
    def is_there() -> bool:
        status = json.loads(shell.run("podlift status latest --json 2>/dev/null")[1])
        assert status["state"] in ("PENDING", "RUNNING"), status
        return (status["progress"] or {}).get("step", 0) >= step

    until(is_there, lambda: f"Step {step} was never reached.", LONG_LIMIT_S)


def do_commands(shell: Shell, example: Example) -> list[str]:
    """Run the commands of a block, and return the lines of the page that they did not print."""
    differences = []
    for command, shown in example.commands():
        code, output = shell.run_on_terminal(command) if shown else shell.run(command)
        expected = 2 if shown and shown[0].startswith("podlift: ") else 1 if "(exit code 1)" in "".join(shown) else 0
        assert code == expected, f"$ {command}\n{output}"
        if left := missing(shown, output):
            differences.append("\n".join([f"$ {command}", *(f"page: {line}" for line in left), output]))
    return differences


def do_in_background(shell: Shell, example: Example, started: list[subprocess.Popen[str]]) -> None:
    ((command, shown),) = example.commands()
    folder = shell.folder()
    env = json.loads(shell.run('python -c "import json, os; print(json.dumps(dict(os.environ)))"')[1])
    # A line for the shell is its output, a sentence for people is not.
    exports = shown[0].startswith("export ")
    stream = {"stdout" if exports else "stderr": subprocess.PIPE}
    begun = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=folder, env=env, text=True, **stream)  # type: ignore[call-overload]
    started.append(begun)
    line = (begun.stdout or begun.stderr).readline()
    assert missing(shown, line) == []
    if exports:
        shell.run(line)


def do_python(shell: Shell, example: Example) -> None:
    """Write a block to the file that it is called by, and run it unless that is for later; tests are run by pytest."""
    file = shell.folder() / (example.title or "test_block.py" * ("def test_" in example.text) or "block.py")
    file.write_text(example.text)
    if example.title == "train.py":
        return
    command = "python -m pytest -q -p no:cacheprovider" if file.name.startswith("test_") else "python"
    code, output = shell.run(f"{command} {file.name}")
    assert code == 0, f"{example.text}\n{output}"


def do(page: Path, shell: Shell, started: list[subprocess.Popen[str]]) -> None:
    differences: list[str] = []
    for example in examples(page):
        if example.mark.startswith(("not run", "only")):
            continue
        if example.mark.startswith("first wait for step "):
            wait_for_step(shell, int(example.mark.split()[-1]))
        if example.mark == "in the background":
            do_in_background(shell, example, started)
        elif example.kind == "console":
            away = example.mark == "without the emulator"
            shell.run("emulator=$PODLIFT_EMULATOR; unset PODLIFT_EMULATOR" if away else ":")
            differences += do_commands(shell, example)
            shell.run("export PODLIFT_EMULATOR=$emulator" if away else ":")
        elif example.kind == "python":
            do_python(shell, example)
        elif example.title:
            (shell.folder() / example.title).write_text(example.text)
    assert differences == [], "\n".join(differences)


@pytest.mark.full
@pytest.mark.tensorflow
def test_the_tutorial_works_word_for_word(shell: Shell, background: list[subprocess.Popen[str]]) -> None:
    # As in a home folder: a longer path breaks other lines.
    shell.run("cd ..")
    do(REPO / "docs" / "tutorial.md", shell, background)


@pytest.mark.parametrize("name", [full_only(name) if name[:-3] in _FULL else name for name in HOW_TO if runs(name)])
def test_the_examples_of_a_guide_work(name: str, shell, background, request) -> None:
    page = REPO / "docs" / "how-to" / name
    (shell.folder() / "train.py").write_text(PROGRAM)
    (shell.folder() / "flaky.py").write_text(FLAKY)
    if name in CLOUD_PAGES:
        cloud = request.getfixturevalue("podlift_vertex_server")
        with suppress(sdk.InputError):  # the page before this one has made it
            cloud.ask("POST", "/storage/v1/b?project=my-project", {"name": "my-bucket", "location": "us-central1"})
        shell.run(f"export PODLIFT_EMULATOR={cloud.url}")
    elif "latest" in page.read_text().partition("podlift submit")[0]:
        assert shell.run("podlift submit train.py --max-steps 5")[0] == 0
    do(page, shell, background)


@pytest.mark.parametrize(
    ("shown", "left"),
    [
        (["run  a-abc123", "...", "state  DONE"], 0),
        (["...", "notes  1", "      more", "..."], 0),
        (["run  a-abc123", "state  DONE"], 1),  # lines between them
        (["run  a-abc123", "..."], 0),
        (["run  a-abc123", "notes  1"], 2),  # lines after them
        (["...", "notes  1 more", "..."], 2),  # wrapped at another place
    ],
)
def test_a_block_that_leaves_out_lines_without_dots_is_found(shown: list[str], left: int) -> None:
    assert len(missing(shown, "run  b-xyz789\nnotes  2\n      more\nstate  DONE\n")) == left


PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]


def test_every_python_block_compiles() -> None:
    for page in PAGES:
        for example in examples(page):
            if example.kind == "python" and "reference" not in page.parts:
                ast.parse(example.text, filename=str(page))
