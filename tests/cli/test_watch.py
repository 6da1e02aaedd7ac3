"""What a person sees on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

import sdk
from sdk.cli import live, look, watch
from sdk.clock import SystemClock

STATUS = sdk.Status(state=sdk.State.RUNNING, reason=sdk.Reason.TRAINING, created=1.0, attempts=1)


def test_a_metric_may_have_any_name(write) -> None:
    write("train.py", "print(1)")
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    record = {"attempt": 1, "epoch": 0, "step": None, "metrics": {"[/x] loss": 1.0, "[red]acc": 0.5, ":smile:": 2.0}}
    with Live(console=console, auto_refresh=False) as drawn:
        live.Turning(drawn).show(type("", (), {"id": "[/b]-aaaaaa"}), STATUS, [record], "")
        drawn.refresh()
    for part in ("epoch 1 :smile:: 2.0000  [/x] loss: 1.0000  [red]acc: 0.5000", "[/b]-aaaaaa"):
        assert part in screen.getvalue()


def test_metrics_of_a_further_attempt_have_a_head(capsys: pytest.CaptureFixture[str]) -> None:
    run = type("", (), {"id": "digits-aaaaaa"})
    records = [{"attempt": n, "epoch": 4, "step": 500, "metrics": {"loss": 1.0}} for n in (1, 2, 2)]
    again = replace(STATUS, attempts=2, continued_step=480)
    plain = watch.Plain(SystemClock())
    plain.show(run, STATUS, records[:1], "")
    plain.show(run, again, records[1:], "")
    said = capsys.readouterr().err.splitlines()
    metrics = "digits-aaaaaa epoch 5 step 500 loss: 1.0000"
    assert said[1:] == [metrics, "digits-aaaaaa attempt 2 continues at step 480:", metrics, metrics]
    screen = io.StringIO()
    with Live(console=Console(file=screen, force_terminal=True, width=100), auto_refresh=False) as drawn:
        live.Turning(drawn).show(run, replace(again, continued_step=0), records, "")
    assert screen.getvalue().index("epoch 5") < screen.getvalue().index(
        "no checkpoint was saved: attempt 2 starts from the beginning:"
    )


def test_a_root_may_have_any_name(tmp_path: Path, here, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "[" / "b]" / "runs" / "damaged").mkdir(parents=True)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr(look, "on_terminal", lambda: True)
    shown = here("runs", "--root", str(tmp_path / "[" / "b]"))
    assert shown.code == 0
    assert "[/b]" in shown.stdout
