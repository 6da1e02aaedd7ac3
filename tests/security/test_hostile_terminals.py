"""Texts from a run that somebody else made: they are shown, and a terminal obeys none of them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path
from typing import Any

import hostile
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FINISHED_RUN, FakeClock, finished_run

import sdk
from sdk.backends.base import LogLine
from sdk.cli import app, completion
from sdk.cli.lines import Printer
from sdk.model_registry.models import damaged
from sdk.model_registry.records import VersionRecord
from sdk.status import Registered
from sdk.text import harmless, visible

ALL = "".join(hostile.TERMINAL.values())
FINAL = "events/0000.supervisor.000003.final.json"


def reached(text: str) -> str:
    """What of a text a terminal would obey."""
    return "".join(hostile.FORBIDDEN.findall(hostile.ALLOWED.sub("", text)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has failed, with only hostile texts."""
    folder = Path(finished_run(tmp_path / "root").url)
    log = folder / "attempts/0001/logs/chief-0.log"
    log.write_bytes(log.read_bytes() + f"{ALL.replace(chr(13), '')} in the log\n".encode())
    metrics = {"time": 2.0, "step": 1, "epoch": 1, "metrics": {f"{ALL} loss": 0.5}}
    (folder / "attempts/0001/metrics/chief-0.jsonl").write_text(json.dumps(metrics) + "\n")
    failure: dict[str, Any] = {"task": "chief-0", "type": f"Error{ALL}", "message": f"{ALL} in it", "traceback": ALL}
    verdict = {"task": "chief-0", "message": f"Error{ALL}: {ALL} in it", "traceback": ALL}
    records: dict[str, Any] = {
        "events/0001.chief-0.000009.failed.json": failure,
        "events/0001.supervisor.000009.finding.json": {"text": f"{ALL} found"},
        FINAL: {"state": "FAILED", "reason": "user_error", "exit_code": 1, "failure": verdict},
    }
    for name, data in records.items():
        (folder / name).write_text(json.dumps({"version": 1, "time": 1.8e9, "data": data}))
    return folder


@pytest.mark.parametrize("words", [["status"], ["why"], ["logs"], ["wait"], ["list"], ["logs", "--task", "chief-0"]])
def test_no_verb_passes_a_control_character_on(run: Path, capsys, words: list[str]) -> None:
    verb, *options = words
    refers = ["--root", str(run.parent.parent)] if verb == "list" else [str(run)]
    app.run([verb, *refers, *options])
    shown = capsys.readouterr()
    assert "evil.example" in shown.out + shown.err or verb == "list"
    assert reached(shown.out + shown.err) == ""


def test_an_explanation_is_harmless_for_programs_that_print_it_too(run: Path) -> None:
    assert reached(sdk.attach(run).why()) == ""
    with pytest.raises(sdk.RunFailedError) as failed:
        sdk.attach(run).result()
    assert reached(str(failed.value)) == ""


@pytest.mark.parametrize("name", hostile.TERMINAL)
@pytest.mark.parametrize("prefixed", [True, False])
def test_a_line_of_a_log_keeps_its_colours_and_moves_nothing(capsys, name: str, prefixed: bool) -> None:
    printer = Printer(prefixed=prefixed, following=False, terminal=True, clock=FakeClock())
    text = f"\x1b[1;31mred\x1b[0m\t{hostile.TERMINAL[name]} é 中 🙂\u200d"
    printer.show(LogLine(task="chief-0", attempt=1, text=text))
    shown = capsys.readouterr().out
    assert reached(shown) == "" and "\x1b[1;31mred\x1b[0m\t" in shown and "é 中 🙂\u200d" in shown
    # Escaped, not dropped: the program's output stays visible.
    assert "\\" in shown


@given(st.text(st.characters() | st.sampled_from("\x1b[]0;m\x9b\x07\x08\r\n\tK"), max_size=60))
def test_no_text_whatever_gets_through(text: str) -> None:
    assert reached(harmless(text)) == reached(harmless(text, colours=True)) == ""
    assert harmless(text).count("\n") == text.count("\n")
    assert visible(text).isprintable()


def test_a_row_of_a_table_is_one_line(run: Path, capsys) -> None:
    (run.parent / "broken\nPENDING\x1b[2J-aaaaaa").mkdir()
    app.run(["list", "--root", str(run.parent.parent)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.count("\t") == 5 for line in lines)


def test_a_shell_completes_no_name_that_it_would_run(run: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODLIFT_ROOT", str(run.parent.parent))
    for name in hostile.SHELL.values():
        shutil.copytree(run, run.parent / f"{name.replace('/', '-')}-aaaaaa")
    for shell in ("bash", "zsh"):
        words = ["podlift status "] if shell == "bash" else ["status", ""]
        completion.answer(shell, words, {"PODLIFT_ROOT": str(run.parent.parent)})
        assert capsys.readouterr().out == f"{run.name}\nlatest\n"


@pytest.mark.parametrize("name", hostile.SHELL)
def test_printed_commands_quote_the_names_in_them(run: Path, name: str) -> None:
    text = hostile.SHELL[name]
    folder = run.parent.parent.with_name(text.replace("/", "-")) / "runs" / run.name
    shutil.copytree(run, folder)
    final = folder / FINAL
    data = json.loads(final.read_bytes())
    data["data"]["failure"]["task"] = text
    final.write_text(json.dumps(data))
    record = VersionRecord(
        model=text, number=1, run=text, run_url="", state="", bundle="", program="", source=text, manifest="", files=0,
        size_bytes=0, created=0.0, by="",
    )  # fmt: skip
    for said, expected in (
        (sdk.attach(folder).why(), [str(folder), "--task", text]),
        (str(damaged(record, [])), ["add", text, "--model", text, "--path"]),
        (str(Registered(model=text, version=1, outcome="asks")), ["promote", text, "1", "--as-compared"]),
    ):
        words = shlex.split(said.rpartition("Next: ")[2].partition(" · ")[0].replace("; or use another version.", ""))
        at = words.index(expected[0])
        assert words[at : at + len(expected)] == expected


def test_names_in_the_folder_of_a_run_are_no_numbers_and_no_paths(run: Path, capsys) -> None:
    """A digit that is no decimal, a name with a line, a link to another file, a pipe, folders in the place of files."""
    (run / FINAL).write_bytes((FINISHED_RUN / FINAL).read_bytes())
    private = run.parent.parent.with_name("private")
    private.write_text("private\n")
    for name in ("\u00b2", "\u0663", "x\x1b[2J", "0001\nx", "-1", "9" * 200):
        (run / "attempts" / name).mkdir()
    (run / "control").mkdir()
    (run / "control/\u00b2.cancel.json").write_text("{}")
    (run / "attempts/0001/logs/worker-0.log").unlink()
    os.mkfifo(run / "attempts/0001/logs/worker-0.log")
    (run / "attempts/0001/logs/times.jsonl").mkdir()
    for words in (["logs"], ["status"], ["why"], ["logs", "--attempt", "1"]):
        code = app.run([words[0], str(run), *words[1:]])
        shown = capsys.readouterr()
        assert code in (0, 1, 2, 3) and "internal error" not in shown.err, (words, shown.err)
        assert reached(shown.out + shown.err) == ""
    for task in ("../../../../private", "chief-0/../../../../../../private", "", "\x1b[2J"):
        assert app.run(["logs", str(run), "--task", task]) == 2
        assert "private\n" not in capsys.readouterr().out


def test_json_of_a_verb_is_json_whatever_a_record_holds(run: Path, capsys) -> None:
    metrics = '{"time": 2.0, "step": NaN, "epoch": 1, "metrics": {"loss": NaN, "up": Infinity, "\\ud800": 1}}\n'
    (run / "attempts/0001/metrics/chief-0.jsonl").write_text(metrics)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    for words in (["status", str(run)], ["list", "--root", str(run.parent.parent)]):
        assert app.run([*words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out, parse_constant=refuse)
        (shown,) = found if isinstance(found, list) else [found]
        assert shown["metrics"] == {"loss": None, "up": None, "\ud800": 1}
