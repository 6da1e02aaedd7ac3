"""`podlift emulator` as a process, and gcloud, set up by the lines that it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from support import LONG_LIMIT_S as LIMIT_S
from support import REPO


class Gcloud:
    """`gcloud ... PLACES` with an emulator's lines sourced, and the emulator's own answers."""

    def __init__(self, folder: Path, lines: list[str], *places: str) -> None:
        self._places = places
        self._source = folder / "settings.sh"
        self._source.write_text("".join(lines))
        self.url = lines[0].strip().partition("=")[2]
        own = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
        self._env = own | {
            "HOME": str(folder),
            "CLOUDSDK_CONFIG": str(folder / "config"),
            "CLOUDSDK_CORE_PROJECT": "podlift",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
        }

    def run(self, *words: str) -> tuple[int, str, str]:
        command = ["sh", "-c", f'. {self._source}; exec gcloud "$@"', "sh", *words, *self._places]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, timeout=LIMIT_S)
        return done.returncode, done.stdout, done.stderr

    def value(self, *words: str) -> str:
        code, out, err = self.run(*words)
        assert code == 0, err
        return out.strip()

    def ask(self, method: str, path: str, body: object = None) -> dict:
        answer = requests.request(method, f"{self.url}/{path}", json=body, timeout=LIMIT_S)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def command(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Start `podlift emulator`; a test that fails leaves none behind."""
    start = [sys.executable, "-m", "sdk", "emulator", *words]
    with subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPO) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def serving(folder: Path, *places: str) -> Iterator[Gcloud]:
    """Start an emulator; each command gets the flags `places`."""
    with command("--data", str(folder / "data")) as emulator:
        assert emulator.stdout and emulator.stderr
        lines = [emulator.stdout.readline()]
        while not lines[-1].endswith("api_transport='rest')\n"):
            lines.append(emulator.stderr.readline())
            assert lines[-1], f"the emulator has ended: {lines}"
        yield Gcloud(folder, lines, *places)
        emulator.terminate()
        emulator.communicate(timeout=LIMIT_S)
