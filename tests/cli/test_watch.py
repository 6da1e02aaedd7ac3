"""What a person sees on a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

import sdk
from sdk.cli import live, look

STATUS = sdk.Status(state=sdk.State.RUNNING, reason=sdk.Reason.TRAINING, created=1.0, attempts=1)


def test_a_metric_may_have_any_name(write) -> None:
    write("train.py", "print(1)")
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    record = {"epoch": 0, "step": None, "metrics": {"[/x] loss": 1.0, "[red]acc": 0.5, ":smile:": 2.0}}
    with Live(console=console, auto_refresh=False) as drawn:
        live.Turning(drawn).show(type("", (), {"id": "[/b]-aaaaaa"}), STATUS, [record])
        drawn.refresh()
    for part in ("epoch 1 :smile:: 2.0000  [/x] loss: 1.0000  [red]acc: 0.5000", "[/b]-aaaaaa"):
        assert part in screen.getvalue()


def test_a_root_may_have_any_name(tmp_path: Path, here, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "[" / "b]" / "runs" / "damaged").mkdir(parents=True)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(look, "on_terminal", lambda: True)
    shown = here("runs", "--root", str(tmp_path / "[" / "b]"))
    assert shown.code == 0
    assert "[/b]" in shown.stdout
