"""A terminal of 80 columns: runs a command in it, and keeps the lines that stay on the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

COLUMNS, ROWS = 80, 40
CODE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


class Screen:
    """The lines that a program has left on a terminal, and when each got its last text."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.times: list[float] = [0.0]
        self.row = 0
        self.colour = ""

    def write(self, text: str, at_s: float) -> None:
        position = 0
        for code in CODE.finditer(text):
            self._print(text[position : code.start()], at_s)
            position = code.end()
            if code[2] == "A":
                self.row = max(0, self.row - int(code[1] or 1))
            elif code[2] in "JK" and code[1] in ("", "0", "2"):
                self.lines[self.row] = ""
                if code[2] == "J":
                    del self.lines[self.row + 1 :], self.times[self.row + 1 :]
            elif code[2] == "m":
                self.lines[self.row] += code[0]
        self._print(text[position:], at_s)

    def _print(self, text: str, at_s: float) -> None:
        for part in re.split(r"(\r\n|\n|\r)", text):
            if part in ("\n", "\r\n"):
                self.row += 1
                if self.row == len(self.lines):
                    self.lines.append("")
                    self.times.append(at_s)
            elif part == "\r":
                self.lines[self.row] = ""
            elif part:
                self.lines[self.row] += part
                self.times[self.row] = at_s


def run(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[int, Screen]:
    """Run a command in a new terminal, and return its exit code and the screen at its end."""
    screen, started = Screen(), time.monotonic()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        words, cwd=folder, env={**env, "TERM": "xterm-256color"}, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the last process has closed the terminal
            break
        if not data:
            break
        screen.write(data.decode(errors="replace"), time.monotonic() - started)
    os.close(ours)
    return process.wait(), screen
