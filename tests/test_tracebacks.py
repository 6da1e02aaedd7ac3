"""Tracebacks as the author of a program reads them."""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sdk
from sdk import tracebacks

COPY = "/root/.podlift/runs/digits-aaaaaa/attempts/0001/tasks/chief-0/code"
SITE = "/home/me/.venv/lib/python3.11/site-packages"
OURS = str(Path(sdk.__file__).parent)


def frame(path: str, line: int = 1, name: str = "f", lead: str = "  ") -> str:
    return f'{lead}File "{path}", line {line}, in {name}\n{lead}  source of {line}\n'


def trace(*frames: str, error: str = "ValueError: m") -> str:
    return f"Traceback (most recent call last):\n{''.join(frames)}{error}\n"


def test_foreign_frames_are_one_line_and_the_programs_keep_source_and_project_path() -> None:
    text = trace(
        frame(f"{COPY}/pkg/train.py", 3),
        frame(f"{SITE}/keras/src/utils/traceback_utils.py"),
        frame(f"{OURS}/runtime/protect_fit.py"),
        frame(f"{SITE}/keras/src/layers/layer.py"),
        frame(f"{COPY}/pkg/layers.py", 7),
        frame("/usr/lib/python3.11/json/decoder.py"),
        frame("<frozen importlib._bootstrap>"),
    )
    assert tracebacks.fold(text).splitlines() == [
        "Traceback (most recent call last):",
        '  File "pkg/train.py", line 3, in f',
        "    source of 3",
        "  ... 2 frames of keras, 1 of podlift ...",
        '  File "pkg/layers.py", line 7, in f',
        "    source of 7",
        "  ... 2 frames of the standard library ...",
        "ValueError: m",
    ]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (f"{COPY}/train.py", '  File "train.py", line 1, in f'),
        (f"{COPY}/vendored/lib/python3.11/site-packages/x.py", 'site-packages/x.py", line 1, in f'),
        ("/opt/conda/lib/python3.10/runpy.py", "  ... 1 frame of the standard library ..."),
        ("/tmp/__autograph_generated_filek2j.py", "  ... 1 frame of tensorflow ..."),
        ("<string>", '  File "<string>", line 1, in f'),
    ],
)
def test_the_path_of_a_frame_decides_its_owner(path: str, shown: str) -> None:
    assert shown in tracebacks.fold(trace(frame(f"{COPY}/top.py"), frame(path)))


def test_without_a_frame_of_the_program_the_last_one_stays() -> None:
    text = trace(frame(f"{SITE}/app/a.py", 1), frame(f"{SITE}/app/b.py", 2))
    lines = tracebacks.fold(text).splitlines()
    assert lines[1:3] == ["  ... 1 frame of app ...", f'  File "{SITE}/app/b.py", line 2, in f']


def test_frames_inside_a_message_of_tensorflow_are_folded_too_and_colours_go() -> None:
    message = (
        "InvalidArgumentError: Graph execution error:\n\nDetected at node MatMul defined at (most recent call last):\n"
        f'  File "{COPY}/train.py", line 9, in <module>\n\n  File "{SITE}/keras/src/a.py", line 1, in fit\n\n'
        f'  File "{SITE}/keras/src/b.py", line 1, in call\n\n\x1b[1mMatrix size-incompatible\x1b[0m\n'
    )
    assert tracebacks.fold(trace(error=message)).splitlines()[1:] == [
        "InvalidArgumentError: Graph execution error:",
        "",
        "Detected at node MatMul defined at (most recent call last):",
        '  File "train.py", line 9, in <module>',
        "",
        "  ... 2 frames of keras ...",
        "",
        "Matrix size-incompatible",
    ]
    assert tracebacks.one_line(message.partition(": ")[2]) == "Matrix size-incompatible"


def raised(source: str, path: str) -> str:
    """Return the traceback that Python itself prints for a program."""
    try:
        exec(compile(source, path, "exec"), {})
    except BaseException as error:
        return "".join(traceback.format_exception(error.with_traceback(error.__traceback__.tb_next)))  # type: ignore[union-attr]
    raise AssertionError("nothing was raised")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups are new in Python 3.11")
def test_chains_and_groups_keep_each_line_of_the_program() -> None:
    source = (
        "import json\n"
        "def a():\n    try:\n        json.loads('{')\n    except ValueError as e:\n        raise KeyError('k') from e\n"
        "try:\n    a()\nexcept KeyError as e:\n    raise ExceptionGroup('both', [e, OSError('o')])\n"
    )
    shown = tracebacks.fold(raised(source, f"{COPY}/train.py"))
    for part in (
        '|   File "train.py", line 10, in <module>',
        '|   File "train.py", line 4, in a\n',
        "|   ... 3 frames of the standard library ...\n",
        "json.decoder.JSONDecodeError: ",
        '|   File "train.py", line 6, in a\n',
        "KeyError: 'k'",
        "OSError: o",
    ):
        assert part in shown
    assert COPY not in shown


def test_the_place_of_a_syntax_error_stays() -> None:
    text = trace(
        frame(f"{COPY}/a.py"), f'  File "{SITE}/x/y.py", line 2\n    def f(:\n          ^\n', error="SyntaxError: s"
    )
    assert f'  File "{SITE}/x/y.py", line 2\n    def f(:\n          ^\nSyntaxError: s' in tracebacks.fold(text)


def test_repeated_frames_count() -> None:
    deep = frame(f"{SITE}/x/y.py") + "  [Previous line repeated 996 more times]\n"
    assert "  ... 997 frames of x ..." in tracebacks.fold(trace(frame(f"{COPY}/a.py"), deep))


def test_a_long_text_is_cut_in_its_middle_and_the_frame_that_failed_stays() -> None:
    frames = [frame(f"{COPY}/a.py", number) for number in range(500)]
    said = "\n".join([f"line {n}" for n in range(900)])
    text = tracebacks.shorten(tracebacks.fold(trace(*frames, error=f"ValueError: {'y' * 1_000_000}\n{said}")))
    assert len(text) < 6_000
    for part in (
        "line 0, in f",
        "  ... 485 frames left out: the task's log has them ...",
        "line 499, in f",
        "999,212 characters left out: the task's log has them",
        "... 865 lines left out",
        "line 899",
    ):
        assert part in text


lines = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [f'  File "{COPY}/a.py", line 1, in f', f'    | File "{SITE}/k/a.py", line 1, in f', "    source", ""]
    ),
)


@given(st.lists(lines, max_size=20).map("\n".join))
def test_folding_twice_is_folding_once(text: str) -> None:
    once = tracebacks.fold(text)
    assert tracebacks.fold(once) == once
    assert "\n" not in tracebacks.one_line(text)


def test_a_megabyte_takes_no_time() -> None:
    text = trace(*[frame(f"{SITE}/keras/{n}.py") for n in range(15_000)])
    began = time.process_time()
    assert "... 14999 frames of keras ..." in tracebacks.fold(text)
    assert time.process_time() - began < 5


@pytest.mark.process
def test_why_tells_the_story_in_project_paths_and_status_has_one_line(write, capsys) -> None:
    from sdk.cli import app

    write("helper.py", "import json\ndef read(text):\n    return json.loads(text)  # mine\n")
    write(
        "train.py",
        "import helper\ntry:\n    helper.read('{')\nexcept ValueError:\n    raise RuntimeError('a\\nb' * 9)\n",
    )
    run = sdk.submit("train.py")
    with pytest.raises(sdk.RunFailedError) as caught:
        run.result(60)
    story = str(caught.value)
    for part in (
        "  File \"train.py\", line 3, in <module>\n    helper.read('{')\n",
        '  File "helper.py", line 3, in read\n    return json.loads(text)  # mine\n',
        "  ... 3 frames of the standard library ...\njson.decoder.JSONDecodeError",
        "During handling of the above exception",
        '  File "train.py", line 5, in <module>\n',
    ):
        assert part in story
    assert f'File "{run.url}' not in story
    assert app.run(["status", run.id]) == 0
    shown = capsys.readouterr().out
    assert "\nerror      chief-0 failed: RuntimeError: a ba b" in shown
    assert "Traceback" not in shown
    assert shown.endswith(f"Next: podlift why {run.id}\n")
    log = "\n".join(line.text for line in run.logs())
    assert f'File "{run.plan.paths.work(1, "chief-0")}/helper.py"' in log, "the log is what Python prints"


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("a.b.NotFoundError: x\nbye", "a.b.NotFoundError: x"),
        ("ERROR:root:could not load", "ERROR:root:could not load"),
        ("Error: no file\n\x1b[31mfailed: again\x1b[0m", "failed: again"),
        ("2026-11-28 10:00:00 ERROR train: no file", "2026-11-28 10:00:00 ERROR train: no file"),
        ("mean_squared_error: 0.5\n0 errors\nMean Squared Error: 0.02", ""),
        (
            "E0000 00:00:1795876419.109385 8277 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed",
            "",
        ),
        ("2026-11-28 10:00:00.123456: E external/local_xla/x.cc:1] UNKNOWN ERROR (303)", ""),
        ("", ""),
    ],
)
def test_the_last_error_of_an_output_is_the_programs(output: str, line: str) -> None:
    assert tracebacks.last_error(output) == line
