from __future__ import annotations

from pathlib import Path

import pytest

import sdk

PACKAGE = {
    "pkg/__init__.py": "",
    "pkg/train.py": "import pkg.helper\ndef main(): ...\nclass Other: ...\n",
    "pkg/helper.py": "",
    "pkg/tool/__init__.py": "",
}


@pytest.mark.parametrize("top", ["", "src/"])
def test_an_entry_is_a_script_a_module_or_a_function_and_src_goes_first_on_the_path(write, top: str) -> None:
    write("train.py", "import pkg.train")
    for path, text in PACKAGE.items():
        write(f"{top}{path}", text)
    for entry, kind in {"train.py": "script", "pkg.train": "module", "pkg.train:main": "function"}.items():
        code = sdk.plan(entry).code
        assert (code.kind, code.program) == (kind, entry.removesuffix(":main"))
        assert code.roots == ([""] if not top else ["", "src"] if kind == "script" else ["src", ""])


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("tran.py", "Did you mean 'train.py'?"),
        ("nowhere/train.py", "project/nowhere. Received: 'nowhere/train.py'. Next: cd to the folder of your program"),
        ("train.py:main", "write 'train:main'"),
        ("pkg", "cannot be run: it has no __main__.py"),
        ("pkg.trian", "There is no module trian in "),
        ("pkg.trian", "Did you mean 'train'?"),
        ("pkg.train:mian", "Did you mean 'main'?"),
        ("pkgs.train", "Did you mean 'pkg'?"),
        ("pkg-train", "is not a script, module or function"),
        (".", "is a folder"),
        ("notes.ipynb", "There is no file notes.ipynb in "),
    ],
)
def test_a_missing_entry_names_the_nearest_one(write, entry: str, said: str) -> None:
    for path, text in {**PACKAGE, "train.py": "print(1)"}.items():
        write(path, text)
    with pytest.raises(sdk.InputError) as caught:
        sdk.plan(entry)
    assert said in str(caught.value)


def test_relative_imports_are_followed_inside_a_package(write) -> None:
    write("pkg/__init__.py")
    write("pkg/a.py", "from . import b\nfrom .sub import c\ndef main(): ...\n")
    write("pkg/b.py", "from .gone import x\n")
    write("pkg/sub/__init__.py")
    write("pkg/sub/c.py", "from ..b import y\nfrom ..lost import z\n")
    with pytest.raises(sdk.InputError) as caught:
        sdk.plan("pkg.a:main")
    assert [problem.partition(". Next")[0] for problem in sorted(caught.value.problems)] == [
        "pkg/b.py:1 imports 'pkg.gone': neither in the project nor installed here",
        "pkg/sub/c.py:2 imports 'pkg.lost': neither in the project nor installed here",
    ]


def test_in_a_world_writable_folder_only_the_script_is_packaged(write) -> None:
    script = write("train.py", "print(1)")
    write("requirements.txt", "numpy")
    write("others.txt", "not yours")
    script.parent.chmod(0o777)
    plan = sdk.plan("train.py")
    assert [file.path for file in plan.code.files] == ["train.py"]
    assert "shared with other things" in str(plan)
    with pytest.raises(sdk.InputError, match="shared with other files"):
        sdk.plan("train:main")


def test_a_home_that_is_a_link_is_not_packaged_whole(write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("train.py", "print(1)")
    write("private.txt", "mine")
    (tmp_path / "home").symlink_to(tmp_path / "project")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert [file.path for file in sdk.plan("train.py").code.files] == ["train.py"]


def test_a_machine_without_a_home_can_plan(write, monkeypatch: pytest.MonkeyPatch) -> None:
    write("train.py", "print(1)")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert sdk.plan("train.py").code.program == "train.py"


@pytest.mark.parametrize(
    ("rules", "entry", "reason"),
    [
        ({".gitignore": "train.py"}, "train.py", r"train\.py \(in \.gitignore\)"),
        ({".podliftignore": "jobs/"}, "jobs/train.py", r"jobs/ \(in \.podliftignore\)"),
        ({}, ".venv/train.py", r"\.venv/ \(never packaged\)"),
    ],
)
def test_an_entry_that_a_rule_leaves_out_is_told_which_rule(write, rules, entry: str, reason: str) -> None:
    file = entry if entry.endswith(".py") else f"{entry.replace('.', '/')}.py"
    write(file, "print(1)")
    write("requirements.txt")
    for name, text in rules.items():
        write(name, text)
    with pytest.raises(sdk.InputError, match=rf"left out of the bundle: {reason}\. .* \(--code-include {file}\)"):
        sdk.plan(entry)
    assert file in [member.path for member in sdk.plan(sdk.Job(entry, code=sdk.Code(include=(file,)))).code.files]


def test_a_script_that_is_a_link_out_of_its_folder_is_refused(write, tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("print(1)")
    write("data.txt").with_name("train.py").symlink_to(tmp_path / "shared.py")
    with pytest.raises(
        sdk.InputError, match=r"left out .*: train.py \(a link that leaves the folder\). Next: name the"
    ):
        sdk.plan("train.py")
