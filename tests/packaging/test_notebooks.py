from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import any_json

import sdk
from sdk.packaging.source.notebooks import Script, script
from sdk.runtime import cells

pytestmark = [pytest.mark.process]


def notebook(*cells: str | list[str], **more: Any) -> dict[str, Any]:
    return {"nbformat": 4, "metadata": {}, "cells": [{"cell_type": "code", "source": cell} for cell in cells], **more}


def converted(tmp_path: Path, *cells: str | list[str], **more: Any) -> Script:
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps(notebook(*cells, **more)))
    return script(path)


def printed(text: str) -> str:
    """The output of a script in another Python."""
    command = [sys.executable, "-I", "-"]
    return subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout.decode()


def above(cell: str) -> str:
    count = len(cell.split("\n"))
    return f"# cell 1, {count} line{'s' * (count > 1)}"


def refused(tmp_path: Path, data: str | bytes | dict[str, Any]) -> tuple[str, ...]:
    path = tmp_path / "train.ipynb"
    text = json.dumps(data) if isinstance(data, dict) else data
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(sdk.InputError) as caught:
        script(path)
    return caught.value.problems


def test_code_cells_follow_each_other_with_their_lines_where_they_were(tmp_path: Path) -> None:
    data = notebook("a = 1\n\nb = 2", ["print(a,\n", "      b)"])
    data["cells"].insert(1, {"cell_type": "markdown", "source": "# not code"})
    (tmp_path / "train.ipynb").write_text(json.dumps(data))
    program = script(tmp_path / "train.ipynb")
    assert program.text.splitlines()[1:] == [
        *("# cell 1, 3 lines", "a = 1", "", "b = 2"),
        *("# cell 3, 2 lines", "print(a,", "      b)"),
    ]
    assert program.notes == ()
    assert printed(program.text) == "1 2\n"


@pytest.mark.parametrize(
    ("cell", "kept", "notes"),
    [
        ("%matplotlib inline\nx = 1", "\nx = 1", ["1: dropped `%matplotlib inline`"]),
        ("x = 1\n!ls -l \\\n  data\ny = 2", "x = 1\n\n\ny = 2", ["2: dropped `!ls -l \\`"]),
        ("x = 1\nx?\n?x\nx.real??", "x = 1\n\n\n", ["2: dropped `x?`", "3: dropped `?x`", "4: dropped `x.real??`"]),
        ("x = !ls\n", "\n", ["1: dropped `x = !ls`; 'x' is then undefined"]),
        ("if 1:\n  %cd data\nelse:\n  y = 2", "if 1:\n  pass\nelse:\n  y = 2", ["2: dropped `%cd data`"]),
        ("%time f(1)", "f(1)", ["1: dropped `%time`, kept its statement"]),
        ("\n%%time\n\nx = 1", "\n\n\nx = 1", ["2: dropped `%%time`; kept the rest of the cell"]),
        ("%%prun -s time\n%%time\nx = 1\n%who", "\n\nx = 1\n",
         ["1: dropped `%%prun -s time`; kept the rest of the cell", "2: dropped `%%time`; kept the rest of the cell",
          "4: dropped `%who`"]),
        ("%%capture out\nx = 1", "\nx = 1", ["1: dropped `%%capture out`; 'out' is then undefined"]),
        ("%%bash\nif then 'x", "\n", ["1: dropped `%%bash`; with the rest of the cell"]),
        ("!pip install x\n%pip install y", "\n", ["1: dropped `!pip install x`; add its packages to the requirements",
         "2: dropped `%pip install y`; add its packages to the requirements"]),
        ("%env API=abc", "", ["1: dropped `%env ...`"]),
        ("!echo \"it's\"\nx = 1  # it's\n%who", "\nx = 1  # it's\n", ["1: dropped `!echo \"it's\"`", "3: dropped `%who`"]),
    ],
)  # fmt: skip
def test_a_line_that_only_a_notebook_understands_is_dropped_with_a_note(tmp_path, cell: str, kept: str, notes) -> None:
    program = converted(tmp_path, cell)
    assert program.text == f"# -*- coding: utf-8 -*-\n{above(kept)}\n{kept}\n"
    assert list(program.notes) == [f"cell 1 line {note}" for note in notes]


@pytest.mark.parametrize(
    "cell",
    [
        "x = (7\n% 4)",
        "x = '''\n%who\n!ls\nx?\n'''",
        'x = """a\\"""\n%who"""',
        "x = f'{1}' % () if 0 else [\n  '=%s' % 1,\n]",
        'print("a=!b")',
        "x = {'#': 1,\n'(': 2}\ny = 7 != 8",
        "x = 'open \\\n%who'",
        "x = 1 # why?",
        "x = r'\\' '\ny = 7",
    ],
)
def test_a_percent_sign_that_is_python_stays(tmp_path: Path, cell: str) -> None:
    program = converted(tmp_path, cell)
    assert (program.text, program.notes) == (f"# -*- coding: utf-8 -*-\n{above(cell)}\n{cell}\n", ())


def test_future_imports_of_later_cells_go_to_the_top(tmp_path: Path) -> None:
    program = converted(
        tmp_path, "def f(x: Never): ...", "%who\nfrom __future__ import (annotations,\n  division); y = 1"
    )
    assert program.text.splitlines()[1:3] == ["from __future__ import annotations, division", "# cell 1, 1 line"]
    assert program.text.split("\n")[-4:] == ["", "pass; y = 1", "", ""]
    assert program.notes[1] == (
        "cell 2 line 2: moved `from __future__ import annotations, division` to the top, for all cells"
    )


def test_a_cell_cannot_change_the_encoding_of_the_script(tmp_path: Path) -> None:
    program = converted(tmp_path, "# coding: latin-1\nx = 'é'\nprint(ascii(x))")
    assert printed(program.text) == "'\\xe9'\n"


def test_the_mistakes_of_all_cells_are_said_at_once(tmp_path: Path) -> None:
    awaits, returns, many = "import asyncio\nawait asyncio.sleep(0)", "return 3", "[i async for i in x]"
    data = notebook("x = 1", "y = \nz = 1", awaits, returns, many, "'\ud800'", "x = 1\0", "((" * 999)
    data["cells"] += [
        {"cell_type": "code"},
        {"cell_type": "code", "source": [1]},
        3,
        {"cell_type": "sql", "source": ""},
    ]
    said = sorted(refused(tmp_path, data))
    expected = [
        "cell 10 has no text: its source is neither a string nor a list of strings.",
        "cell 11 is neither code, markdown nor raw.",
        "cell 12 is neither code, markdown nor raw.",
        "cell 2 line 1: syntax error: invalid syntax.",
        "cell 3 line 2: syntax error: 'await' outside function; only a notebook can await outside a function: use asyncio",
        "cell 4 line 1: syntax error: 'return' outside function.",
        "cell 5 line 1: syntax error: asynchronous comprehension outside of an asynchronous function; only a notebook",
        "cell 6 line 1: a character that UTF-8 cannot encode.",
        "cell 7 line 1",
        "cell 8 line 1",
        "cell 9 has no text",
    ]
    assert len(said) == len(expected)
    assert [start for start, problem in zip(expected, said, strict=True) if not problem.startswith(start)] == []
    (said,) = refused(tmp_path, notebook("x = 1", "y = 1\nglobal x"))
    assert said == "cell 2 line 2: syntax error: name 'x' is assigned to before global declaration.", "only together"


def test_a_function_that_only_a_notebook_has_gets_a_replacement_outside_of_one(tmp_path: Path) -> None:
    program = converted(tmp_path, "from __future__ import annotations\ndisplay('a', 2)", "print(get_ipython())")
    assert printed(program.text).split() == ["a", "2", "None"]
    assert program.notes[1:] == (
        "outside of a notebook display() prints text",
        "outside of a notebook get_ipython() returns None",
    )


@pytest.mark.parametrize(
    ("cell", "warned"),
    [
        ("%matplotlib inline\n%load_ext tensorboard\n%time x = 1\nlen?\n!pip install numpy\n%pip install numpy", []),
        ("!rm -rf logs", ["!rm -rf logs"]),
        ("files = !ls", ["files = !ls"]),
        ("%env LEARNING_RATE=3", ["%env ..."]),
        ("%%bash\nls", ["%%bash"]),
    ],
)
def test_a_warning_names_a_dropped_line_that_the_program_may_miss(tmp_path, cell: str, warned: list[str]) -> None:
    warnings = converted(tmp_path, cell).warnings
    assert [text.split("`")[1] for text in warnings] == warned


@pytest.mark.parametrize("cell", ["from IPython.display import display", "def display(x): ...", "display = print"])
def test_a_notebook_that_has_its_own_display_keeps_it(tmp_path: Path, cell: str) -> None:
    program = converted(tmp_path, cell, "display(1)")
    assert (program.notes, "def display(*" in program.text) == ((), False)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("{", "Not a notebook, because it is not JSON: Expecting property name"),
        (b"\xff\xfe\xff", "because it is not JSON"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"nbformat": ' + "9" * 5000 + "}", "because it is not JSON: Exceeds the limit (4300"),
        ("{}", "its nbformat is not a number"),
        ({"nbformat": True}, "its nbformat is not a number"),
        ({"nbformat": 3, "worksheets": []}, "format of the notebook is not 4. Received: nbformat 3. Next: save it with a"),
        ({"nbformat": 4}, "its cells are not a list"),
        ({"nbformat": 4, "cells": [{"cell_type": "raw"}]}, "has no code cell"),
        (notebook("1", metadata=3), "its metadata.kernelspec.language is not a string"),
        (notebook("1", metadata={"kernelspec": {"language": 3}}), "its metadata.kernelspec.language is not a string"),
        (notebook("1", metadata={"kernelspec": {"language": "R"}}), "Received: metadata.kernelspec.language = 'R'"),
        (notebook("1", metadata={"language_info": {"name": "julia"}}), "not written in Python. Received: metadata.language"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_python_notebook_is_refused_with_the_reason(tmp_path: Path, data: Any, said: str) -> None:
    (problem,) = refused(tmp_path, data)
    assert said in problem


def test_a_mistake_in_a_notebook_is_reported_with_its_cell(write) -> None:
    data = notebook("import os", "\n%ls\nimport not_there_at_all")
    data["cells"].insert(0, {"cell_type": "markdown", "source": "# cell 9"})
    write("sub/train.ipynb", json.dumps(data))
    write("common/x.py")
    for include in ([], ["../common"]):
        with pytest.raises(sdk.InputError, match=r"^(\w+/)?train\.ipynb: cell 3 line 3 imports 'not_there_at_all'"):
            sdk.plan(sdk.Job("sub/train.ipynb", code=sdk.Code(project="sub", include=include)))


def test_a_notebook_that_is_not_there_or_too_large_is_said(tmp_path: Path) -> None:
    with pytest.raises(sdk.InputError, match="No such notebook"):
        script(tmp_path / "gone.ipynb")
    with pytest.raises(sdk.InputError, match="not a usable path"):
        script(Path("x" * 5000))
    with (tmp_path / "large.ipynb").open("wb") as file:
        file.truncate(100 * 1024 * 1024 + 1)
    with pytest.raises(sdk.InputError, match="has 104,857,601 bytes, more than 104,857,600"):
        script(tmp_path / "large.ipynb")


WRITTEN = [
    "%%writefile setup.py\nimport os\nVALUE = 1\n",
    "import setup\nassert setup.VALUE == 1",
    "%%writefile -a 'sub folder/notes.txt'\none",
    "%%file sub folder.txt\nlost",
    '%%writefile --append "sub folder/notes.txt"\ntwo\n\n',
    "%%writefile setup.py\nVALUE = 'é'",
    "%%writefile -a there.txt\nmore",
    "%%writefile ../out.txt\nno",
    "%%writefile /tmp/out.txt\nno",
    "%%writefile $x/out.txt\nno",
    "import os\nprint(sorted(p for p in os.listdir('.') if not p.startswith('__')))\n"
    "for name in ('setup.py', 'sub folder/notes.txt', 'there.txt'):\n  print(repr(open(name, encoding='utf-8').read()))",
]


def test_files_written_by_cells_appear_in_the_copy_of_the_run_in_the_cells_order(write) -> None:
    write("there.txt", "before\n")
    project = write("keras.ipynb", json.dumps(notebook(*WRITTEN))).parent
    plan = sdk.plan("keras.ipynb", workers=2)
    assert plan.code.program == "keras.ipynb.py"
    assert plan.run_id.startswith("keras-")
    said = [finding.message for finding in plan.findings if finding.message.startswith("keras.ipynb: cell")]
    assert len([text for text in said if "writes" in text]) == 5
    assert len([text for text in said if "is not written: it must be below the notebook's folder" in text]) == 4
    run = sdk.submit(plan)
    run.result(60)
    assert [line.text for line in run.logs(task="worker-0")] == [
        "['keras.ipynb', 'keras.ipynb.py', 'setup.py', 'sub folder', 'there.txt']",
        "\"VALUE = 'é'\\n\"",
        r"'one\ntwo\n\n'",
        r"'before\nmore\n'",
    ]
    assert sorted(path.name for path in project.iterdir()) == ["keras.ipynb", "there.txt"]
    assert (project / "there.txt").read_text() == "before\n"


def test_a_notebook_shadows_no_library_of_its_name(write) -> None:
    write("json.ipynb", json.dumps(notebook("import json, wave", "print(json.dumps([1]), wave.__file__ == __file__)")))
    write("wave.ipynb", json.dumps(notebook("import wave", "print(wave.open.__name__, wave.__file__ == __file__)")))
    for name, shown in (("json.ipynb", "[1] False"), ("wave.ipynb", "open False")):
        run = sdk.submit(name)
        run.result(60)
        assert [line.text for line in run.logs()] == [shown]


def test_an_error_in_a_notebook_names_the_cell_its_line_and_shows_it(write) -> None:
    data = notebook(
        "def fit(rate):\n    return 1 / rate", "# cell 9, 1 line\n%who\nfit(1)\n\nfit(0)  # too low", "never"
    )
    data["cells"].insert(0, {"cell_type": "markdown", "source": "x"})
    write("sub/train.ipynb", json.dumps(data))
    write("requirements.txt")
    run = sdk.submit("sub/train.ipynb")
    with pytest.raises(sdk.RunFailedError) as caught:
        run.result(60)
    log = "\n".join(line.text for line in run.logs())
    for text in (str(caught.value), run.why(), log):
        assert 'train.ipynb, cell 3", line 5, in <module>' in text
        assert "fit(0)  # too low" in text
        assert 'train.ipynb, cell 2", line 2, in fit' in text
        assert "    return 1 / rate" in text
        assert "ipynb.py" not in text


def test_a_definition_of_a_cell_has_its_source_and_travels_to_other_processes(write) -> None:
    data = notebook(
        "from __future__ import annotations\nimport inspect, multiprocessing",
        "def double(x: Undefined):\n    return 2 * x",
        "if __name__ == '__main__':\n    print(inspect.getsource(double).split()[1], double.__annotations__)\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(double, [2]))",
    )
    write("train.ipynb", json.dumps(data))
    run = sdk.submit("train.ipynb")
    run.result(60)
    assert [line.text for line in run.logs()] == ["double(x: {'x': 'Undefined'}", "[4]"]


lines = st.sampled_from(
    [
        "%x",
        "!ls 'a",
        "x = !ls",
        "y = %time 1",
        "x?",
        "%%time",
        "%%bash",
        "if x:",
        "# cell 2, 3 lines",
        "%%writefile a.py",
    ]
    + ["  pass", "  %x", "'''", '"', "(", ")", "\\", "x = 1", "x = [", "]", "await x", "# é \\", "\t", "\x0c", "\r"]
    + ["f'{x!r}'", "\ud800", "global x", "import os; from __future__ import division"]
    + ["from __future__ import annotations", "from __future__ import x"]
)
sources = st.text() | st.lists(lines).map("\n".join) | st.lists(st.text() | lines.map(lambda line: f"{line}\n"))
some_cells = st.fixed_dictionaries(
    {"cell_type": st.sampled_from(["code", "code", "markdown", "x"]), "source": sources | st.none()}
)
anything = any_json(st.floats(), keys=st.sampled_from(["nbformat", "cells", "metadata", "source", "x"]), leaves=10)
notebooks = st.fixed_dictionaries(
    {"nbformat": st.just(4) | anything, "cells": st.lists(some_cells) | anything},
    optional={"metadata": st.fixed_dictionaries({"kernelspec": anything}) | anything},
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(notebooks | anything)
def test_anything_is_a_program_or_a_sentence(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "fuzz.ipynb"
    path.write_text(json.dumps(data))
    try:
        program = script(path)
    except sdk.InputError as error:
        assert all(problem.endswith((".", ")")) and "\n" not in problem for problem in error.problems)
    else:
        compile(program.text.encode(), "fuzz", "exec", dont_inherit=True)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(lines, max_size=8).map("\n".join))
@example("%%writefile a.py\n\ud800")
def test_every_line_of_a_cell_keeps_its_number(tmp_path: Path, cell: str) -> None:
    try:
        program = converted(tmp_path, "0", cell)
    except sdk.InputError:
        return
    first, second = cells.cells(program.text)
    assert (first.lines, second.number, second.above) == (("0",), 2, first.above + 2)
    assert len(second.lines) == len(cell.replace("\r\n", "\n").replace("\r", "\n").split("\n"))
    assert program.text.split("\n")[second.above : -1] == list(second.lines)
