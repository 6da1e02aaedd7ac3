"""Whatever a folder holds: a plan names every file, packaged or left out with the reason, or one error names the problem."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sdk
from sdk.packaging import bundle
from sdk.packaging.entry import locate
from sdk.runtime.unpack import unpack

Make = Callable[[Path], object]


def text(path: str, content: str = "x") -> Make:
    def make(top: Path) -> None:
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(content)

    return make


def link(path: str, target: str) -> Make:
    def make(top: Path) -> None:
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).symlink_to(target.replace("TOP", str(top)))

    return make


def raw(name: bytes, *, folder: bool = False) -> Make:
    def make(top: Path) -> None:
        path = os.path.join(os.fsencode(top), name)
        if folder:
            os.mkdir(path)
            path = os.path.join(path, b"inner.txt")
        with open(path, "wb") as file:
            file.write(b"x")

    return make


def bind(top: Path) -> None:
    # The path of a socket is short: made elsewhere, moved here.
    with tempfile.TemporaryDirectory() as short, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{short}/s")
        os.rename(f"{short}/s", top / "socket")


def mode(path: str, bits: int) -> Make:
    def make(top: Path) -> None:
        text(path)(top)
        (top / path).chmod(bits)

    return make


def hard(top: Path) -> None:
    text("a.txt")(top)
    os.link(top / "a.txt", top / "b.txt")


def sparse(top: Path) -> None:
    for name, size in (("big.bin", 1024**3), ("huge.bin", 50 * 1024**3)):
        with open(top / name, "wb") as file:
            file.truncate(size)


def deep(top: Path) -> None:
    folder = top
    for _ in range(60):
        folder = folder / "d"
    folder.mkdir(parents=True)
    (folder / "end.txt").write_text("x")


KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nx"
# Each: the maker of the tree, its packaged files ("" for the words of an error instead), its omitted files with the reason.
CORPUS: dict[str, tuple[Make, list[str] | str, list[str]]] = {
    "a name with a line end": (text("a\nb.txt"), ["a\nb.txt"], []),
    "a name with a backslash": (text("a\\b.txt"), ["a\\b.txt"], []),
    "a name that starts with a dash": (text("-rf"), ["-rf"], []),
    "a name that looks like climbing": (text("..a/b"), ["..a/b"], []),
    "a name of 255 bytes": (text("n" * 255), ["n" * 255], []),
    "a name of emoji": (text("🦙/模型.txt"), ["🦙/模型.txt"], []),
    "a name with a combining accent": (text("e\u0301.txt"), ["e\u0301.txt"], []),
    "a name that is not UTF-8": (raw(b"\xff.txt"), [], ["\\udcff.txt (its name is not UTF-8)"]),
    "a folder whose name is not UTF-8": (raw(b"\xfe", folder=True), [], ["\\udcfe/ (its name is not UTF-8)"]),
    "a path of 60 folders": (deep, ["d/" * 60 + "end.txt"], []),
    "a link to a file inside": (link("l.py", "train.py"), ["l.py"], []),
    "an absolute link to a file inside": (link("l.py", "TOP/train.py"), ["l.py"], []),
    "a link that climbs out and comes back": (link("l.py", "../tree/train.py"), ["l.py"], []),
    "a link to a secret of the machine": (link("l", "/etc/passwd"), [], ["l (a link that leaves the folder)"]),
    "a link that climbs": (link("l", "../../x"), [], ["l (a link that leaves the folder)"]),
    "a broken link": (link("l", "nothing"), [], ["l (a broken link)"]),
    "a link to itself": (link("l", "l"), [], ["l (a broken link)"]),
    "a link to its own folder": (link("sub/l", ".."), ["sub/"], ["sub/l/ (a link to a folder)"]),
    "a link to the top of the disk": (link("l", "/"), [], ["l/ (a link to a folder)"]),
    "a link through /proc": (link("l", "/proc/self/cwd"), [], ["l/ (a link to a folder)"]),
    "a link to a device": (link("l", "/dev/zero"), [], ["l (a link that leaves the folder)"]),
    "a pipe": (lambda top: os.mkfifo(top / "pipe"), [], ["pipe (not a regular file)"]),
    "a socket": (bind, [], ["socket (not a regular file)"]),
    "two names of one file": (hard, ["a.txt", "b.txt"], []),
    "a file of 50 GB": (sparse, "Largest: huge.bin (53687 MB), big.bin (1074 MB)", []),
    "an empty folder": (lambda top: (top / "a" / "b").mkdir(parents=True), ["a/b/"], []),
    "a file with every mode": (mode("wild", 0o7777), ["wild"], []),
    "a virtual environment of another name": (text("e/pyvenv.cfg"), [], ["e/ (a virtual environment)"]),
    "a conda environment": (text("c/conda-meta/x"), [], ["c/ (a virtual environment)"]),
    "a .git that is a file": (text(".git", "gitdir: /elsewhere"), [".git"], []),
    "a folder called .gitignore": (text(".gitignore/x"), [".gitignore/x"], []),
    "a .gitignore of everything": (text(".gitignore", "*\n"), "left out of the bundle", []),
    "a .gitignore that is no text": (raw(b".gitignore"), [".gitignore"], []),
    "an ignore file that is a link to the machine": (link(".podliftignore", "/etc/hostname"), [], ["+"]),
    "a folder called train.py.": (text("train.py./x"), ["train.py./x"], []),
    "stale bytecode": (text("pkg/__pycache__/x.pyc"), [], []),
    "bytecode beside its source": (text("b.pyc"), [], []),
    "a repository": (text(".git/config"), [], [".git/ (never packaged)"]),
    "a package that shadows json": (text("json/__init__.py", ""), ["json/__init__.py"], []),
    "a private key under a harmless name": (text("notes.txt", KEY), [], ["notes.txt (looks like a secret)"]),
}  # fmt: skip


def made(tmp_path: Path, name: str) -> Path:
    top = tmp_path / "tree"
    top.mkdir()
    (top / "train.py").write_text("print(1)")
    CORPUS[name][0](top)
    return top


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def files_in(plan: sdk.Plan) -> set[str]:
    return {file.path for file in plan.code.files if not file.path.endswith("/")}


# Python is asked for its modules.
ASKS = pytest.param("a package that shadows json", marks=pytest.mark.process)


@pytest.mark.parametrize("name", [ASKS if name in ASKS.values else name for name in CORPUS])
def test_a_hostile_tree_is_packaged_or_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    top = made(tmp_path, name)
    _, packaged, left_out = CORPUS[name]
    if isinstance(packaged, str):
        with pytest.raises(sdk.InputError) as caught:
            sdk.plan(str(top / "train.py"))
        assert packaged in str(caught.value)
        return
    plan = sdk.plan(str(top / "train.py"))
    assert [file.path for file in plan.code.files] == sorted([*packaged, "train.py"])
    assert plan.code.left_out == left_out or left_out == ["+"]
    assert sdk.Plan.from_json(plan.to_json(), "here") == plan
    archive = bundle.build(locate(str(top / "train.py")), never={})
    assert archive.digest == plan.code.digest
    bundle.write(archive, top, tmp_path / "x.tar")
    unpack(tmp_path / "x.tar", archive.digest, tmp_path / "out")
    assert files_of(tmp_path / "out") == files_in(plan)


# A task finds the files of the archive: one tree of each kind shows that.
IN_A_TASK = ["a name with a line end", "a link that climbs out and comes back", "a file with every mode"]


@pytest.mark.process
@pytest.mark.parametrize("name", IN_A_TASK)
def test_a_task_finds_the_files_of_a_hostile_tree_in_its_folder(tmp_path: Path, name: str) -> None:
    plan = sdk.plan(str(made(tmp_path, name) / "train.py"))
    sdk.submit(plan).result(60)
    assert files_of(Path(plan.paths.work(1, "chief-0"))) == files_in(plan)


NAMES = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=12
).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@settings(max_examples=60)
@given(st.dictionaries(PATHS, st.binary(max_size=50), max_size=12), st.dictionaries(PATHS, PATHS, max_size=4))
def test_any_tree_comes_out_of_its_archive_as_it_went_in(tmp_path_factory, files, links) -> None:
    folder = tmp_path_factory.mktemp("any")
    top = folder / "tree"
    top.mkdir()
    for path, content in [*files.items(), *links.items()]:
        with suppress(OSError):
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(content) if isinstance(content, bytes) else (top / path).symlink_to(content)
    (top / "entry-of-the-test.py").write_text("print(1)")
    try:
        source = locate(str(top / "entry-of-the-test.py"), str(top))
        made = bundle.build(source, never={})
        again = bundle.build(source, never={})
    except sdk.InputError:
        return
    assert made == again
    bundle.write(made, top, folder / "x.tar")
    unpack(folder / "x.tar", made.digest, folder / "out")
    kept = [member.path for member in made.members if not member.path.endswith("/")]
    assert files_of(folder / "out") == set(kept)
    assert all((folder / "out" / path).read_bytes() == (top / path).read_bytes() for path in kept)
    assert all((folder / "out" / path).is_dir() for path in {member.path for member in made.members} - set(kept))
