"""A package that podlift does not depend on, in a separate environment, with podlift and all that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, REPO

UV = f"{sysconfig.get_path('scripts')}/uv"


class Foreign:
    """An environment that holds packages; a test is skipped where they cannot be installed."""

    def __init__(self, folder: Path, *packages: str) -> None:
        self._folder, self._python = folder, folder / "venv" / "bin" / "python"
        subprocess.run(
            [UV, "venv", "-q", "--python", sys.executable, str(folder / "venv")], check=True, timeout=LIMIT_S
        )
        install = [UV, "pip", "install", "-q", "--python", str(self._python), *packages]
        done = subprocess.run(install, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode:
            pytest.skip(f"{packages[0]} cannot be installed here: {done.stderr[-300:]}")
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        (site / "podlift.pth").write_text(f"{REPO}\n{sysconfig.get_path('purelib')}\n")
        self.variables: dict[str, str] = {}

    def begin(self, *words: str, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start its Python; `output` is a file for its output."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        env = {**kept, "HOME": str(self._folder), "PYTHONUNBUFFERED": "1", **self.variables}
        return subprocess.Popen(
            [str(self._python), *words], cwd=self._folder, env=env, stdout=output, stderr=output, text=True
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        with self.begin(*words) as process:
            try:
                stdout, stderr = process.communicate(timeout=LIMIT_S)
            finally:
                process.kill()
        return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)

    def export(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "sdk", "export", *words)

    def read(self, program: str) -> list[dict[str, Any]]:
        done = self.run("-c", program)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
