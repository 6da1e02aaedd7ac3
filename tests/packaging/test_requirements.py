"""The packages that a project needs: read from the files that people have, or refused line by line."""

from __future__ import annotations

import locale
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import read, refused

import sdk
from sdk.packaging.requirements.read import Requirements, gather


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("Scikit_Learn >= 1.3 , <2", "scikit-learn<2,>=1.3"),
        ("requests[socks, Use-Chardet]~=2.0", "requests[socks,use-chardet]~=2.0"),
        ("tomli ; python_version<'3.11'", 'tomli ; python_version < "3.11"'),
        ("numpy==1.*  # not ${VERSION}", "numpy==1.*"),
        ("x @ https://host.example/x-1.0.tar.gz", "x @ https://host.example/x-1.0.tar.gz"),
        ("x@git+ssh://git@host.example/x@v1 ; os_name=='nt'", 'x @ git+ssh://git@host.example/x@v1 ; os_name == "nt"'),
        ("https://host.example/a_b-1.0-py3-none-any.whl", "a-b @ https://host.example/a_b-1.0-py3-none-any.whl"),
        ("https://host.example/x-1.0.tar.bz2", "x @ https://host.example/x-1.0.tar.bz2"),
        ("git+https://host.example/x@v1#egg=x&subdirectory=a", "x @ git+https://host.example/x@v1#subdirectory=a"),
        ("-e git+https://host.example/x.git#egg=x", "x @ git+https://host.example/x.git"),
        ("numpy==1.0 ; os_name=='nt' \\\n    --hash=sha256:ab", 'numpy==1.0 ; os_name == "nt" --hash=sha256:ab'),
        ("numpy>=1,\\\n<2", "numpy<2,>=1"),
    ],
)
def test_a_line_of_any_kind_comes_out_in_one_spelling(write, written: str, line: str) -> None:
    write("requirements.txt", f"# a comment\n\n{written}\n")
    requirements = read()
    assert (requirements.source, requirements.lines) == ("requirements.txt", (line,))
    if "\n" not in written:
        assert read((written,)).lines == (line,)


def test_options_say_where_to_look(write) -> None:
    write("wheels/readme.txt")
    text = """
        -i https://one.example/simple
        --extra-index-url=https://two.example/simple --trusted-host two.example
        --pre
        -f wheels
        --find-links https://three.example/files
        --no-binary :all:
        numpy
        """
    write("requirements.txt", text)
    assert read().options == (
        "--index-url https://one.example/simple",
        "--extra-index-url https://two.example/simple",
        "--trusted-host two.example",
        "--pre",
        f"--find-links {Path.cwd() / 'wheels'}",
        "--find-links https://three.example/files",
        "--no-binary :all:",
    )


def test_the_plan_shows_where_packages_come_from_and_warns_of_unverified_sources(write) -> None:
    write("wheels/readme.txt")
    text = """
        --index-url HTTP://one.example/simple
        --extra-index-url https://two.example/simple?v=S3CRET
        --trusted-host two.example
        --find-links wheels
        numpy
        other @ http://three.example/other-1.0-py3-none-any.whl
        """
    write("requirements.txt", text)
    findings = read().notes
    (shown,) = [finding.message for finding in findings if finding.level == "note"]
    for source in ("--index-url HTTP://one", "--extra-index-url https://two", "--trusted-host two", "--find-links /"):
        assert source in shown
    assert "S3CRET" not in str(findings)
    warnings = [finding.message for finding in findings if finding.level == "warning"]
    plain = [warning.partition(":")[0] for warning in warnings if "TLS" in warning]
    assert plain == ["Packages come from HTTP", "Packages come from http"]
    assert any(warning.startswith("--trusted-host two.example: the certificate") for warning in warnings)
    write("requirements.txt", "--pre\nnumpy\n")
    assert read().notes == ()


def test_files_name_files_beside_them(write) -> None:
    write("requirements.txt", "-r requirements/base.txt\npandas\n")
    write("requirements/base.txt", "-rmore.txt\n-c limits.txt\nnumpy\n")
    write("requirements/more.txt", "scipy; python_version >= '3.0'\n")
    write("requirements/limits.txt", "numpy<2\nscipy<9\nabsl-py<3\n-r further.txt\n")
    write("requirements/further.txt", "pandas<4\n")
    requirements = read()
    assert requirements.lines == ("numpy<2", "pandas<4", 'scipy<9 ; python_version >= "3.0"')
    limits = ("absl-py<3", "numpy<2", "pandas<4", "scipy<9")
    assert requirements.constraints == limits, "for what requirements bring themselves"


def test_every_mistake_is_named_with_its_line(write) -> None:
    text = """\
        numpy>>1
        fine
        scikit learn
        -r gone.txt
        -r more.txt
        --index-rul https://one.example
        ./wheels/x-1.0-py3-none-any.whl
        ../nowhere
        -r https://host.example/requirements.txt
        numpy --hash=sha256
        --hash=sha256:ab
        numpy --pre
        """
    write("requirements.txt", text)
    write("more.txt", "-r requirements.txt\n\n\n'quoted'\n")
    problems = refused()
    for location, said in [
        ("requirements.txt:1:", "Received: 'numpy>>1'"),
        ("requirements.txt:3:", "this is not a requirement"),
        ("gone.txt:", "cannot be read"),
        ("requirements.txt:", "includes itself, by way of requirements.txt, more.txt"),
        ("more.txt:4:", "this is not a requirement"),
        ("requirements.txt:6:", "Did you mean '--index-url'?"),
        ("requirements.txt:7:", "no such folder"),
        ("requirements.txt:8:", "no such folder"),
        ("requirements.txt:9:", "the content at a URL may change"),
        ("requirements.txt:10:", "a hash looks like"),
        ("requirements.txt:11:", "must follow a requirement"),
        ("requirements.txt:12:", "--pre must be on a separate line"),
    ]:
        assert any(problem.startswith(location) and said in problem for problem in problems), (location, said, problems)
    assert len(problems) == 12


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("numpy==1 --hash=sha256:ab ; python_version < '3'", "name, marker, options"),
        ("--index-url https://host.example/simple numpy", "nothing may follow the options of a line"),
        ("-e ./libs/x ; python_version < '3'", "A local folder needs no -e"),
        ("-e ./libs/x -e ./libs/y", "--editable must be on a separate line"),
        ("--hash=sha256:ab --index-url https://host.example/simple", "a --hash must follow a requirement"),
        ("--global-option=x numpy", "does not accept pip's option --global-option"),
        ("--editabel ./libs/x", "Did you mean '--editable'?"),
        ("-", "this is not a requirement. Received: '-'"),
        ("--index-url https://u:p@host.example", "netrc"),
    ],
)
def test_nothing_in_a_line_is_left_out_without_a_word(write, line: str, said: str) -> None:
    write("libs/x/pyproject.toml", "[project]\nname = 'x'\n")
    write("libs/y/pyproject.toml", "[project]\nname = 'y'\n")
    write("requirements.txt", f"{line}\n")
    for (problem,) in (refused(), refused((line,))):
        assert said in problem


@pytest.mark.parametrize(
    "line",
    [
        "x @ https://user:S3CRET@host.example/x.whl",
        "x @ git+https://S3CRET@host.example/x",
        "x @ git+ssh://git:S3CRET@host.example/x",
        "x @ https://host.example/x.whl?token=S3CRET",
        "--index-url https://user:S3CRET@host.example/simple",
        "--extra-index-url https://S3CRET@host.example/simple",
        "-e https://user:S3CRET@host.example more",
        "--find-links https://user:S3CRET@host.example/files",
        "x @ https://S3CRET@host.example/x.whl",
        "https://user:S3/CRET@host.example/x-1-py3-none-any.whl",
        "git+https://user:S3CRET@host.example/x#egg=x",
        "x @ https://user:S3CRET@host.example/x.whl and more",
        "https://user:S3CRET@host.example",
        "--unknown https://user:S3CRET@host.example",
    ],
)
def test_credentials_are_refused_and_never_shown(write, line: str) -> None:
    write("requirements.txt", line)
    for problems in (refused(), refused((line,))):
        assert len(problems) == 1
        assert "CRET" not in problems[0]
        assert "user" not in problems[0]


def test_a_variable_of_the_environment_is_refused(write) -> None:
    write("requirements.txt", "--index-url https://${TOKEN}@host.example/simple\nnumpy==${VERSION}\nx==$y\n")
    problems = refused()
    assert "requirements.txt:1: it reads TOKEN from the environment" in problems[0]
    assert "requirements.txt:2: it reads VERSION from the environment" in problems[1]


def test_a_file_is_read_by_its_mark_or_as_utf_8_whatever_the_locale_says(write, monkeypatch) -> None:
    monkeypatch.setattr(locale, "getpreferredencoding", lambda do_setlocale=True: "ascii")
    file = write("requirements.txt")
    for data in ("numpy\n".encode("utf-16"), b"\xef\xbb\xbfnumpy\r\n", "numpy  # für später\n-f räder\n".encode()):
        file.write_bytes(data)
        write("räder/readme.txt")
        assert read().lines == ("numpy",)
    assert "räder" in read().options[0]
    file.write_bytes(b"numpy # \xe9\n")
    assert "not UTF-8 text" in refused()[0]


def test_pyproject_is_read_with_its_dynamic_files(write) -> None:
    write("pyproject.toml", """
        [project]
        name = "app"
        dependencies = ["numpy>=1", "x; os_name == 'nt'", "app[more]"]
        [project.optional-dependencies]
        more = ["scipy", "app[most]"]
        most = ["pandas"]
        other = ["bad bad"]
        """)  # fmt: skip
    requirements = read()
    assert requirements.source == "pyproject.toml"
    assert requirements.lines == ("numpy>=1", "pandas", "scipy", 'x ; os_name == "nt"')
    write("pyproject.toml", "[project]\nname = 'app'\ndynamic = ['dependencies']\n"
          "[tool.setuptools.dynamic]\ndependencies = {file = ['base.txt']}\n")  # fmt: skip
    write("base.txt", "numpy\n")
    assert read().lines == ("numpy",)


@pytest.mark.parametrize(
    ("text", "source", "said"),
    [
        ("[project]\nname = 'a'\ndynamic = ['dependencies']\n", "pyproject.toml", "dependencies are dynamic: setup.py"),
        ("[tool.poetry.dependencies]\npython = '^3.10'\nnumpy = '^2'\n", "", "Poetry's own tables are not read"),
        ("[project]\nname = 'app'\n", "", ""),
    ],
)
def test_a_field_missing_in_pyproject_is_reported(write, text: str, source: str, said: str) -> None:
    write("pyproject.toml", text)
    requirements = read()
    assert (requirements.source, requirements.lines) == (source, ())
    assert [note.level for note in requirements.notes] == ["warning"] * bool(said)
    assert all(said in note.message for note in requirements.notes)


def test_mistakes_in_pyproject_have_a_line(write) -> None:
    write("pyproject.toml", "[project]\nname = 'a'\ndependencies = [\n  'numpy>>1',\n  'fine',\n  '-r base.txt',\n]\n")
    problems = refused()
    assert [problem.partition(" ")[0] for problem in problems] == ["pyproject.toml:4:", "pyproject.toml:6:"]
    write("pyproject.toml", "[project]\ndependencies = 'numpy'\n")
    assert "is not a list of strings" in refused()[0]
    write("pyproject.toml", "[project\n")
    assert "not TOML" in refused()[0]


def test_sources_of_uv_are_followed(write) -> None:
    write("pyproject.toml", """
        [project]
        name = "app"
        dependencies = ["common[fast]", "member", "x>=1", "y", "z; os_name == 'nt'"]
        [tool.uv.workspace]
        members = ["packages/*"]
        [tool.uv.sources]
        common = { path = "../common" }
        member = { workspace = true }
        x = { git = "https://host.example/x", tag = "v1", subdirectory = "a" }
        y = { index = "private" }
        z = { url = "https://host.example/z-1-py3-none-any.whl" }
        """)  # fmt: skip
    extras = "[project.optional-dependencies]\nfast = ['numba', 'member']\n"
    write("../common/pyproject.toml", f"[project]\nname = 'common'\n{extras}")
    write("packages/one/pyproject.toml", "[project]\nname = 'member'\ndependencies = ['attrs']\n")
    requirements = read()
    assert requirements.folders == ("../common", "packages/one")
    assert requirements.lines == (
        "attrs",
        "numba",
        "x @ git+https://host.example/x@v1#subdirectory=a",
        "y",
        'z @ https://host.example/z-1-py3-none-any.whl ; os_name == "nt"',
    )
    assert "uv's index 'private'" in requirements.notes[0].message


def test_local_folders_are_packaged_with_their_requirements(write) -> None:
    extras = "[project.optional-dependencies]\nt = ['more']\n"
    write("pyproject.toml", f"[project]\nname = 'app'\ndependencies = ['own']\n{extras}")
    write("libs/x/pyproject.toml", "[project]\nname = 'x'\ndependencies = ['of-x', 'app', 'common>=1']\n")
    write("../common/pyproject.toml", "[project]\nname = 'common'\ndependencies = ['of-common']\n")
    write("../old/setup.py")
    old = f"old @ file://{Path.cwd().parent}/old"
    write("requirements.txt", f"-e .[t]\n./libs/x\n-e ../common\n{old}\ncommon==1.0\nlast\n")
    requirements = read()
    assert requirements.folders == ("../common", "../old", "libs/x")
    assert requirements.lines == ("last", "more", "of-common", "of-x", "own")
    assert any("old: the requirements in its setup.py" in note.message for note in requirements.notes)
    assert read((".",)).lines == ("own",)
    assert read((".[t]", "last")).lines == ("last", "more", "own")
    assert "it has no extra 'tt'. Did you mean 't'?" in refused((".[tt]",))[0]


@pytest.mark.parametrize(
    "line",
    [
        "x @ ./libs/x", "x @ libs/x", "x[train] @ ./libs/x", "-e 'x @ ./libs/x'", "file:./libs/x[train]", "-e ./libs/x[train]",
        "./libs/x ; python_version >= '3'", "x @ file:./libs/x ; python_version >= '3'", "-c limits.txt",
    ],
)  # fmt: skip
def test_every_way_to_write_a_local_folder_packages_it(write, line: str) -> None:
    write("libs/x/pyproject.toml", "[project]\nname = 'x'\n[project.optional-dependencies]\ntrain = ['of-train']\n")
    write("limits.txt", "x @ file:./libs/x\n")
    write("requirements.txt", f"{line}\nx>=1\n" if "x @" in line or "-c" in line else line)
    for requirements in (read(), read((line,))):
        assert requirements.folders == ("libs/x",)
        assert requirements.lines == (("of-train",) if "[train]" in line else ())
        assert requirements.constraints == (), "a path of this machine is no limit for pip elsewhere"


@pytest.mark.parametrize("line", ["./libs/x ; python_version < '3'", "x @ ./libs/x ; python_version < '3'"])
def test_a_local_folder_with_a_marker_that_does_not_hold_here_is_refused(write, line: str) -> None:
    write("libs/x/pyproject.toml", "[project]\nname = 'x'\n")
    write("requirements.txt", line)
    for (problem,) in (refused(), refused((line,))):
        assert "its marker does not hold on this one. Received: 'python_version < \"3\"'" in problem


def test_a_wheel_of_this_machine_is_refused_with_the_line_to_write(write) -> None:
    write("wheels/x-1.0-py3-none-any.whl")
    assert "'--find-links wheels' and 'x'" in refused(("./wheels/x-1.0-py3-none-any.whl",))[0]
    assert "does not name a folder of the project" in refused(("--find-links ../elsewhere",))[0]
    assert "not a Python project" in refused(("./wheels",))[0]


@pytest.mark.process
def test_the_first_file_that_says_anything_wins_and_the_others_are_named(write) -> None:
    assert read() == Requirements()
    write("environment.yml")
    (note,) = read().notes
    assert (read().source, note.level) == ("", "note")
    assert "environment.yml" in note.message
    write("pyproject.toml", "[project]\nname = 'app'\nversion = '0'\ndependencies = ['from-pyproject']\n")
    assert read().lines == ("from-pyproject",)
    write("requirements.txt", "from-file\n")
    assert read().lines == ("from-file",)
    assert "not from pyproject.toml" in read().notes[0].message
    locked = "[[package]]\nname = 'app'\nsource = { virtual = '.' }\n"
    write("uv.lock", f"version = 1\nrequires-python = '>=3.10'\n{locked}")
    assert read().source == "uv.lock"
    assert any("not from requirements.txt" in note.message for note in read().notes)
    (older,) = [note.message for note in read().notes if "older than pyproject.toml" in note.message]
    assert "from-pyproject" in older
    assert read("none") == Requirements()
    assert read("pyproject.toml").lines == ("from-pyproject",)
    assert read(()).source == "list"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("requirments.txt", "Did you mean 'requirements.txt'?"),
        ("numpy>=1", "write one requirement as a list"),
        ("poetry.lock", "poetry export"),
        ("config.yaml", "Not a requirements file"),
        ("x" * 5000, "not a usable path"),
    ],
)
def test_a_setting_that_names_no_file_of_requirements_is_refused(write, setting: str, said: str) -> None:
    for name in ("requirements.txt", "poetry.lock", "config.yaml"):
        write(name)
    assert said in refused(setting)[0]


PIECES = st.sampled_from(
    ["numpy", ">=1", "==", " ", "\n", "\\\n", "#", "-r", "-e", "-c", "--hash=", "--index-url", "=", "https://u:p@h", "git+",
     "file:", "./", "..", "~", "[x]", "[", ";", "os_name", "'nt'", "@", "'", '"', ".whl",
     "requirements.txt", "${A}", "\0", "\x85"]
)  # fmt: skip


@given(st.lists(PIECES | st.text(max_size=3), max_size=12))
def test_any_text_is_read_or_refused_in_sentences(tmp_path_factory: pytest.TempPathFactory, pieces: list[str]) -> None:
    folder = tmp_path_factory.mktemp("any")
    text = "".join(pieces)
    try:
        (folder / "requirements.txt").write_text(text, encoding="utf-8", newline="")
    except UnicodeEncodeError:
        return
    for setting in ("auto", (text,)):
        try:
            requirements = gather(setting, folder)
        except sdk.InputError as error:
            assert all("u:p" not in problem for problem in error.problems)
        else:
            assert not any("u:p" in line for line in (*requirements.lines, *requirements.options))
            assert all(line.isprintable() for line in requirements.lines)
