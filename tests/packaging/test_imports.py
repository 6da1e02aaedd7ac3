"""The findings from reading a program before it starts: errors only where nothing can make it work."""

from __future__ import annotations

import importlib.machinery

import pytest

import sdk


def findings(entry: str = "train.py", **options: object) -> list[str]:
    """The sentences of a plan about imports and names."""
    found = [each for each in sdk.plan(entry, **options).findings if each.level == "warning"]
    return [each.message for each in found if "TensorFlow" not in each.message]


def refused(entry: str = "train.py", **options: object) -> tuple[str, ...]:
    """The problems for which a plan is refused."""
    with pytest.raises(sdk.InputError) as caught:
        sdk.plan(entry, **options)
    return caught.value.problems


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nfrom os.path import dirname\nsys.path.insert(0, dirname(__file__) + '/lib')\nimport helper\n",
        "import helper\n",
        "import sys, types\nsys.modules['fake'] = types.ModuleType('fake')\nimport fake\n",
        "from importlib import import_module\nimport outside\n",
        "open('written.py', 'w').write('X = 1')\nimport written\n",
        "try:\n    import arranging\nexcept ImportError:\n    pass\nimport outside\n",
        "import linked\n",
    ],
)
def test_an_import_that_the_program_may_provide_for_is_a_warning_and_no_error(write, text: str) -> None:
    write("lib/helper.py")
    write("arranging.py", "import sys\nsys.path.append('/elsewhere')\n")
    write("real/__init__.py").parent.parent.joinpath("linked").symlink_to("real")
    write("train.py", text)
    said = findings()
    assert len(said) == 1
    assert "not found where the program starts" in said[0]


@pytest.mark.parametrize(
    "text",
    [
        "from contextlib import suppress\nwith suppress(ImportError):\n    import not_there\n",
        "if __name__ != '__main__':\n    import not_there\n",
        "try:\n    import not_there\nexcept (AttributeError, OSError):\n    pass\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import not_there\n",
        "from fastpkg import inner, NAME\nfrom fastpkg.inner import *\nimport space.module\n",
        "import fastmod\n",
        "import data\n",
        "import keras\nx = " + " + ".join(['"text"'] * 1_800) + "\nkeras.utils.set_random_seed(len(x))\n",
    ],
)
def test_an_import_that_works_or_may_be_meant_to_fail_says_nothing(write, text: str) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    files = (f"fastmod{suffix}", f"fastpkg/__init__{suffix}", "fastpkg/inner.py", "data/numbers.csv", "space/module.py")
    for name in files:
        write(name)
    write("train.py", text).with_name("empty").mkdir()
    assert findings() == []


def test_a_guard_for_main_runs_in_a_script_and_a_module_but_not_for_a_function(write) -> None:
    write("train.py", "import other\ndef main(): ...\nif __name__ == '__main__':\n    import not_there\n")
    write("other.py", "if __name__ == '__main__':\n    import not_there_either\n")
    assert findings("train:main") == []
    for entry in ("train.py", "train"):
        assert [problem.partition(":")[0] for problem in refused(entry)] == ["train.py"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("return 1\n", "train.py:1: syntax error: 'return' outside function"),
        ("from __future__ import nonsense\n", "train.py:1: syntax error"),
        ("x = 1\0\n", "train.py: "),
        ("x = " + "-" * 200_000 + "1", "nested too deeply"),
        ("x = 1" + " + 1" * 200_000, "nested too deeply"),
    ],
)
def test_a_script_that_python_cannot_compile_is_a_sentence(write, text: str, said: str) -> None:
    write("train.py", text)
    assert said in "".join(refused())


@pytest.mark.parametrize("top", ["", "src/"])
def test_a_relative_import_is_refused_in_a_script_and_accepted_in_a_module(write, top: str) -> None:
    write("requirements.txt")
    write(f"{top}pkg/__init__.py")
    write(f"{top}pkg/other.py", "x = 1\n")
    write(f"{top}pkg/train.py", "from .other import x\n")
    write(f"{top}pkg/guarded.py", "try:\n    from .other import x\nexcept ImportError:\n    from other import x\n")
    assert refused(f"{top}pkg/train.py") == (
        f"{top}pkg/train.py:1: 'from .other import x' works in a module of a package, not in a script. Next: import by "
        "the full name, or start it as a module (podlift submit pkg.train).",
    )
    sdk.plan("pkg.train")
    sdk.plan(f"{top}pkg/guarded.py")


NO_READER = "import quiet\ndef main(epochs=3, rate=1): ...\n"


@pytest.mark.parametrize(
    ("text", "args", "said"),
    [
        ("def outer():\n    def main(): ...\n", None, "has no function 'main'"),
        ("class C:\n    def main(self): ...\n", None, "has no function 'main'"),
        ("async def main(): ...\n", None, "train.py:1: main is an async function"),
        ("def main():\n    for i in range(3):\n        yield i\n", None, "train.py:1: main is a generator"),
        ("def main(epochs=3): ...", {"epoch": 1}, "main has no argument 'epoch'. Did you mean 'epochs'?"),
        ("def main(a, b, *, c, d=1): ...", {"b": 1}, "main needs 'a', 'c'. Received: 'b'."),
        ("def main(a): ...", None, "main needs 'a'. Received: no keyword arguments."),
        ("def main(a, /): ...", {"a": 1}, "main has no argument 'a'"),
        (NO_READER, [7], "sets no argument of main(epochs, rate)"),
        (NO_READER, [7], 'args={"epochs": 7} (--args)'),
        (NO_READER, ["a", 0.1], 'args={"epochs": "a", "rate": 0.1} (--args)'),
        (NO_READER, ["--epochs", "7"], 'args={"epochs": ...} (--args)'),
    ],
)
def test_a_function_or_arguments_that_would_fail_or_run_nothing_are_refused(write, text: str, args, said: str) -> None:
    write("quiet.py")
    write("train.py", text)
    assert said in "".join(refused("train:main", args=args))


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("main, other = print, len\n", None),
        ("with open(__file__):\n    def main(): ...\n", None),
        ("def __getattr__(name):\n    return print\n", None),
        ("match 1:\n    case main:\n        pass\n", None),
        ("if (main := print):\n    pass\n", None),
        ("def make():\n    global main\n    main = print\nmake()\n", None),
        ("globals()['main'] = print\n", None),
        ("import json as main\n", None),
        ("def main():\n    def batches():\n        yield 1\n    return sum(batches())\n", None),
        ("def run(f):\n    return f\n@run\nasync def main(): ...\n", None),
        ("def main(a, b=2, *, c): ...", {"a": 1, "c": 3}),
        ("def main(*words, a=1): ...", {"a": 1}),
        ("def fill(f): return lambda **k: f(1)\n@fill\ndef main(a): ...", {"x": 1}),
        ("class main:\n    def __init__(self, a): ...", {"a": 1}),
        ("import sys\ndef main(argv=None): print(sys.argv)", ["7"]),
        ("import argparse\ndef main(epochs=3): argparse.ArgumentParser().parse_args()", ["7"]),
        ("import sdk\ndef main(epochs=3): print(sdk.context().args)", ["7"]),
        ("import helpers\ndef main(epochs=3): helpers.go()", ["7"]),
        ("def main(): ...", ["7"]),
    ],
)
def test_a_function_however_it_comes_about_and_arguments_that_may_fit_are_accepted(write, text: str, args) -> None:
    write("train.py", text)
    write("helpers.py", "from sys import argv\ndef go(): ...")
    assert sdk.plan("train:main", args=args).code.argv == (args if isinstance(args, list) else [])


@pytest.mark.parametrize("file", ["sdk/__init__.py", "sdk.py", "src/sdk/__init__.py"])
@pytest.mark.parametrize("entry", ["train.py", "jobs/train.py"])
def test_a_project_with_its_own_sdk_is_refused_with_the_way_out(write, file: str, entry: str) -> None:
    write("pyproject.toml", "[tool.setuptools.packages.find]\nwhere = ['.', 'src']\n")
    write(file, "W = 1")
    write(entry, "print(1)\n")
    assert refused(entry) == (
        f"The project has a module named 'sdk', {file!r}: this is podlift's import name, and a process can import only one "
        "of the two. Next: rename it, or move it below another package.",
    )


@pytest.mark.parametrize("entry", ["from sdk.model import W\n", "from sdk import model\n", "sdk.model:main"])
def test_an_import_from_a_folder_that_podlift_hides_is_refused(write, entry: str) -> None:
    write("sdk/model.py", "W = 1\ndef main(): ...\n")
    write("train.py", entry)
    where = "The entry" if ":" in entry else r"train\.py:1"
    said = rf"{where} imports 'sdk\.model' from the project's folder 'sdk'.*Next: rename it"
    with pytest.raises(sdk.InputError, match=said):
        sdk.plan(entry if ":" in entry else "train.py")


@pytest.mark.parametrize("text", ["import podlift\n", "from podlift import context\n", "import podlift.errors as e\n"])
def test_an_import_by_the_commands_name_is_refused_with_the_import_name(write, text: str) -> None:
    write("train.py", f"{text}print('podlift')\n")
    (said,) = refused()
    assert said.startswith("train.py:1 imports 'podlift") and said.endswith("Next: write import sdk.")


def test_an_import_by_the_commands_name_that_may_fail_is_no_mistake(write) -> None:
    write("train.py", "try:\n    import podlift\nexcept ImportError:\n    podlift = None\n")
    assert findings() == []
    write("train.py", "def main():\n    import podlift\n")
    (said,) = findings()
    assert said.startswith("train.py:2 imports 'podlift' when it is called") and said.endswith("write import sdk.")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        (["tools/__init__.py", "tools/sdk/__init__.py"], "import sdk\nfrom tools import sdk as ours\n"),
        (["podlift/__init__.py"], "import podlift\nprint(podlift.VALUE)\n"),
        (["podlift/__init__.py", "podlift/model.py"], "from podlift.model import VALUE\n"),
        (["sdk/model.py"], "from sdk import submit, Job\n"),
        (["sdk/model.py"], "print(1)\n"),
    ],
)
def test_a_project_may_have_these_names_where_no_import_takes_them_for_podlift(write, files: list, text: str) -> None:
    for file in files:
        write(file, "VALUE = 1")
    write("train.py", text)
    assert findings() == []


def test_modules_that_pythons_own_may_shadow_are_named_where_they_are_imported(write) -> None:
    for name in ("json.py", "random/__init__.py", "wave.py", "lib/uuid.py"):
        write(name)
    write("train.py", "import json, wave\nfrom lib import uuid")
    warning = findings()
    assert len(warning) == 1
    assert "imports json.py and wave.py, named like" in warning[0]


def test_an_unreadable_module_is_named(write, monkeypatch: pytest.MonkeyPatch) -> None:
    from sdk.packaging.audit.program import Program
    from sdk.packaging.entry import locate

    script = write("train.py", "print(1)")
    program = Program(locate("train.py"), ["train.py"])
    script.unlink()
    with pytest.raises(sdk.InputError, match=r"cannot be read: .*train\.py"):
        program.checked_tree("train.py")


def test_an_unknown_name_of_podlift_is_an_error_when_it_is_imported_at_the_start(write) -> None:
    write("train.py", "from sdk import contxt\nimport sdk.runtme\nfrom sdk import context, errors, __version__\n")
    assert refused() == (
        "train.py:1 imports 'sdk.contxt', which podlift does not have. Did you mean 'sdk.context'?",
        "train.py:2 imports 'sdk.runtme', which podlift does not have. Did you mean 'sdk.runtime'?",
    )


def test_an_unknown_name_of_podlift_is_a_warning_when_only_a_function_reads_it(write) -> None:
    text = "import sdk\nimport sdk as podlift\nfrom other import late\n\ndef main():\n    from sdk import contxt\n"
    write("train.py", f"{text}    podlift.contxt()\n    podlift.context()\n    late()\n")
    write("other.py", "def late():\n    import sdk\n    return sdk.Checkpoint(every=3)\n")
    assert findings("train:main") == [
        "train.py:6 imports 'sdk.contxt', which podlift does not have. Did you mean 'sdk.context'?",
        "train.py:7 uses 'sdk.contxt', which podlift does not have. Did you mean 'sdk.context'?",
        "other.py:3 uses 'sdk.Checkpoint', which podlift does not have. Did you mean 'sdk.Checkpoints'?",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import sdk\nsdk.own = 1\ndef main(): return sdk.own\n",
        "import sdk\ndef main(sdk=None): return sdk.own\n",
        "import sdk\ndef main():\n    if hasattr(sdk, 'own'): return sdk.own\n",
        "def main():\n    try:\n        from sdk import own\n    except ImportError:\n        own = None\n",
        "from sdk import *\nimport sdk\ndef main(): return sdk.runtime, sdk.Job, sdk.__version__, sdk.job.plan\n",
    ],
)
def test_a_name_of_podlift_that_may_exist_when_it_is_read_says_nothing(write, text: str) -> None:
    write("train.py", text)
    assert findings("train:main") == []
