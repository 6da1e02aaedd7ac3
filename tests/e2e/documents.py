"""Reads the examples of a page, and compares the output of commands with the page."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from support import REPO

sys.path.insert(0, str(REPO / "scripts"))
import terminal

_FENCE = re.compile(
    r"(?:<!-- example: (?P<mark>[^\n]*?) -->\n)?"
    r"```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Texts that differ from run to run: durations, addresses, paths, names of runs, numbers.
_VARIABLE = (
    (r"(?:\d[\d.]* (?:min|h|s|days?)\b ?)+", "TIME "),
    (r"\bhttps?://\S+", "URL"),
    (r"(?<![\w:/])[~/]\S+", "PATH"),
    (r"\b[\w-]+-[a-z0-9]{6}\b", "RUN"),
    (r"\b[0-9a-f]{12,}\b", "HASH"),
    (r"\d[\d.,:-]*", "N"),
    (r"\s+", " "),
)
_END = "\x01"
_LIMIT_S = 180.0


@dataclass(frozen=True)
class Example:
    """One fenced block: its language, the file that it is, its text, and the author's marks for running it."""

    kind: str
    title: str
    text: str
    mark: str

    def commands(self) -> list[tuple[str, list[str]]]:
        """Return each command of a console block with the lines that the page shows for it."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:].split("    #")[0].rstrip(), []))
            elif found[-1][0].endswith("\\"):
                found[-1] = (found[-1][0][:-1] + line.strip(), [])
            else:
                found[-1][1].append(line)
        return found


def examples(page: Path) -> list[Example]:
    return [
        Example(match["kind"], match["title"] or "", match["text"], match["mark"] or "")
        for match in _FENCE.finditer(page.read_text())
    ]


def plain(line: str) -> str:
    for pattern, word in _VARIABLE:
        line = re.sub(pattern, word, line)
    return line.strip()


def missing(shown: list[str], output: str) -> list[str]:
    """Return the lines of a page up from the first that the output does not have there; "..." stands for any lines."""
    lines = [plain(line) for line in output.splitlines() if line.strip()]
    at, anywhere = 0, not shown
    for number, line in enumerate(shown):
        if line.startswith("..."):
            anywhere = True
        elif line.strip():
            found = next((place for place in range(at, len(lines)) if lines[place] == plain(line)), -1)
            if found < 0 or (found > at and not anywhere):
                return shown[number:]
            at, anywhere = found + 1, False
    return [] if anywhere else [f"(and {line})" for line in lines[at:]]


class Shell:
    """One bash for all commands of a page, so that folders and variables last."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, env=env,
            start_new_session=True,
        )  # fmt: skip

    def run(self, command: str) -> tuple[int, str]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{{ {command}\n}} </dev/null; printf '{_END}%d\\n' $?\n")
        self._process.stdin.flush()
        output = ""
        # A command that does not end would keep the tests from ending.
        limit = threading.Timer(_LIMIT_S, self._kill)
        limit.start()
        try:
            for line in self._process.stdout:
                before, end, code = line.partition(_END)
                output += before
                if end:
                    return int(code), output
        finally:
            limit.cancel()
        raise AssertionError(f"The shell has ended, or the command took longer than {_LIMIT_S:g} s. {output}")

    def run_on_terminal(self, command: str) -> tuple[int, str]:
        """Run a command with the folder and the variables of this shell in a terminal of 80 columns."""
        env = json.loads(self.run('python -c "import json, os; print(json.dumps(dict(os.environ)))"')[1])
        code, screen = terminal.run(["timeout", f"{_LIMIT_S:g}", "bash", "-c", command], self.folder(), env)
        return code, "\n".join(terminal.CODE.sub("", line) for line in screen.lines)

    def _kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)

    def folder(self) -> Path:
        return Path(self.run("pwd")[1].strip())

    def close(self) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
