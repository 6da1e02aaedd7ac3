from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sdk
from sdk.errors import InputError
from sdk.execution import entrypoint
from sdk.packaging import bundle
from sdk.packaging import tree as trees
from sdk.packaging.entry import LocatedEntry
from sdk.runtime.unpack import BadBundleError, unpack


def build(folder: Path) -> bundle.Bundle:
    entry = LocatedEntry(project=folder, kind="script", target="train.py", function="", file="train.py", roots=("",))
    return bundle.build(entry, never={})


def tree(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


FILES = {"train.py": "print(1)", "pkg/__init__.py": "", "pkg/data/numbers.csv": "1,2"}


def test_the_same_tree_gives_the_same_digest_in_another_folder_on_another_day(tmp_path: Path) -> None:
    one = tree(tmp_path / "one", FILES)
    two = tree(tmp_path / "two", dict(reversed(FILES.items())))
    for path in two.rglob("*"):
        os.utime(path, (1, 1))
    (two / "pkg").chmod(0o700)
    assert build(one).digest == build(two).digest


def test_files_modes_and_empty_folders_come_out_of_an_archive_as_they_went_in(tmp_path: Path) -> None:
    folder = tree(tmp_path / "project", {**FILES, "tool.sh": "echo"})
    (folder / "tool.sh").chmod(0o755)
    (folder / "logs" / "raw").mkdir(parents=True)
    (folder / "deleted" / "__pycache__").mkdir(parents=True)
    made = build(folder)
    assert [member.path for member in made.members] == sorted([*FILES, "logs/raw/", "tool.sh"])
    archive, out = tmp_path / "bundles" / "x.tar", tmp_path / "out"
    assert bundle.write(made, folder, archive)
    assert not bundle.write(made, folder, archive), "unchanged code is not written twice"
    unpack(archive, made.digest, out)
    written = {path.relative_to(out).as_posix(): path.read_text() for path in out.rglob("*") if path.is_file()}
    assert written == {**FILES, "tool.sh": "echo"}
    assert os.access(out / "tool.sh", os.X_OK) and not os.access(out / "train.py", os.X_OK)
    assert (out / "logs" / "raw").is_dir() and not (out / "deleted").exists()


def test_a_damaged_archive_is_written_anew_from_the_files_that_it_was_made_of(tmp_path: Path) -> None:
    folder = tree(tmp_path / "project", FILES)
    made = build(folder)
    archive = tmp_path / "bundles" / "x.tar"
    bundle.write(made, folder, archive)
    whole = archive.read_bytes()
    for damaged in (bytes([whole[0] ^ 1]) + whole[1:], whole[:-1], b""):
        archive.write_bytes(damaged)
        assert bundle.write(made, folder, archive)
        assert archive.read_bytes() == whole


def test_the_archive_equals_the_archive_of_tarfile(tmp_path: Path) -> None:
    folder = tree(tmp_path / "project", {**FILES, "long/" * 30 + "ü.txt": "x" * 513, "empty.txt": ""})
    (folder / "hollow").mkdir()
    made = build(folder)
    bundle.write(made, folder, tmp_path / "x.tar")
    with tarfile.open(tmp_path / "theirs.tar", "w", format=tarfile.PAX_FORMAT) as theirs:
        for item in made.members:
            info = tarfile.TarInfo(item.path)
            info.type = tarfile.DIRTYPE if item.path.endswith("/") else tarfile.REGTYPE
            info.size, info.mode = item.size, 0o755 if item.path.endswith("/") else 0o644
            theirs.addfile(info, io.BytesIO((folder / item.path).read_bytes()) if item.sha256 else None)
    assert (tmp_path / "x.tar").read_bytes() == (tmp_path / "theirs.tar").read_bytes()


@given(
    st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=9),
    st.integers(1, 30),
    st.sampled_from([0, 1, 8**11 - 1, 8**11]) | st.integers(0, 8**12),
    st.sampled_from([(tarfile.REGTYPE, False), (tarfile.REGTYPE, True), (tarfile.DIRTYPE, True)]),
)
def test_every_header_equals_the_header_of_tarfile(name: str, repeat: int, size: int, how: tuple[bytes, bool]) -> None:
    kind, executable = how
    path = name * repeat + ("/" if kind == tarfile.DIRTYPE else "")
    info = tarfile.TarInfo(path)
    info.type, info.size, info.mode = kind, size, 0o755 if executable else 0o644
    assert bundle._header(path, kind, size, executable=executable) == info.tobuf(tarfile.PAX_FORMAT)


def test_files_that_changed_since_the_plan_are_named_and_nothing_is_written(tmp_path: Path) -> None:
    folder = tree(tmp_path / "project", FILES)
    (folder / "empty").mkdir()
    made = build(folder)
    (folder / "train.py").write_text("print(3)")
    (folder / "empty").rmdir()
    said = r"changed since the plan was made: empty/ \(removed\), train.py\. Next: plan again.*--code-exclude"
    with pytest.raises(InputError, match=said):
        bundle.write(made, folder, tmp_path / "bundles" / "x.tar")
    assert not (tmp_path / "bundles").exists(), "a refused submit leaves nothing behind"


@pytest.mark.parametrize(("root", "left_out"), [(".", ["bundles", "runs"]), ("runs", ["runs"])])
def test_a_root_in_a_project_packages_no_earlier_runs(write, monkeypatch, root: str, left_out: list[str]) -> None:
    for path, text in {**FILES, "runs/x/plan.json": "{}", "bundles/y.tar": "", "pkg/runs/kept.txt": ""}.items():
        write(path, text)
    monkeypatch.setenv("PODLIFT_ROOT", root)
    plan = sdk.plan("train.py")
    kept = [*FILES, "pkg/runs/kept.txt", *(["bundles/y.tar"] if root == "runs" else [])]
    assert [file.path for file in plan.code.files] == sorted(kept)
    assert plan.code.left_out == [f"{name}/ (the root of runs)" for name in left_out]


def test_a_file_that_comes_and_goes_during_the_walk_is_not_packaged(tmp_path: Path, monkeypatch) -> None:
    folder = tree(tmp_path, {**FILES, "gone.txt": ""})
    real = os.scandir

    def racing(path):
        entries = list(real(path))
        (folder / "gone.txt").unlink(missing_ok=True)
        return contextlib.nullcontext(entries)

    monkeypatch.setattr(os, "scandir", racing)
    assert [member.path for member in build(folder).members] == sorted(FILES)


@pytest.mark.parametrize("back", [False, True])
def test_a_file_that_goes_between_the_walk_and_the_reading_is_not_packaged(tmp_path: Path, monkeypatch, back) -> None:
    folder = tree(tmp_path, {**FILES, "gone.txt": "old"})
    real, looks = trees.read, []

    def racing(*args, **options):
        if back and looks:
            (folder / "gone.txt").write_text("saved again")
        stat = real(*args, **options)
        looks.append(stat)
        (folder / "gone.txt").unlink() if len(looks) == 1 else None
        return stat

    # An editor brings the file back while the archive is read.
    lexists = os.path.lexists
    monkeypatch.setattr(os.path, "lexists", lambda path: lexists(path) or (back and Path(path).name == "gone.txt"))
    monkeypatch.setattr(trees, "read", racing)
    members = {member.path: member.size for member in build(folder).members}
    assert sorted(members) == sorted([*FILES, *(["gone.txt"] if back else [])])
    assert members.get("gone.txt") == (len("saved again") if back else None)


def test_an_unreadable_file_is_left_out_with_a_warning_and_the_project_stays_usable(tmp_path, monkeypatch) -> None:
    folder = tree(tmp_path, {**FILES, "locked/secret.txt": "", "key.bin": "", "unseen.bin": ""})

    def guarded(call, denied: str):
        def guarding(path, *more, **options):
            if str(path).endswith(denied):
                raise PermissionError(13, "Permission denied", str(path))
            return call(path, *more, **options)

        return guarding

    for name, denied in (("scandir", "locked"), ("lstat", "unseen.bin"), ("open", "key.bin")):
        monkeypatch.setattr(os, name, guarded(getattr(os, name), denied))
    bundle = build(folder)
    assert [member.path for member in bundle.members] == sorted(FILES)
    said = [f"{name} (cannot be read: permission denied)" for name in ("locked/", "unseen.bin", "key.bin")]
    assert sorted(bundle.left_out) == sorted(said)
    assert [(note.level, note.message) for note in bundle.notes] == [
        ("warning", "Not packaged: unseen.bin (cannot be read: permission denied), locked/ (cannot be read: permission "
         "denied), key.bin (cannot be read: permission denied).")
    ]  # fmt: skip


def archive_of(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "evil",
    [
        member("/etc/x"),
        member("../x"),
        member("a/../../x"),
        member("a", tarfile.SYMTYPE, "/etc/passwd"),
        member("a", tarfile.LNKTYPE, "b"),
        member("a", tarfile.CHRTYPE),
        member("a", tarfile.FIFOTYPE),
        member("/a", tarfile.DIRTYPE),
        member("."),
    ],
    ids=lambda info: f"{info.name}-{info.type!r}",
)
def test_an_archive_that_reaches_outside_or_holds_no_file_is_refused(tmp_path: Path, evil: tarfile.TarInfo) -> None:
    refuse(tmp_path, archive_of(evil))


def numbered(data: bytearray, block: int, at: int, number: int) -> None:
    """Write a number into a header, as long ones are written, and make its checksum right again."""
    start = block * tarfile.BLOCKSIZE
    data[start + at : start + at + 12] = tarfile.itn(number, 12, tarfile.GNU_FORMAT)
    total = sum(data[start : start + 148]) + sum(data[start + 156 : start + 512]) + 8 * 32
    data[start + 148 : start + 156] = b"%06o\0 " % total


def sparse(kind: str, size: int) -> bytearray:
    """An archive of 10 KB with a file of zeros of any length, as GNU tar writes one."""
    first, zeros, buffer = member("first.py"), tarfile.TarInfo("zeros"), io.BytesIO()
    zeros.size = 0 if kind == "old" else 512
    if kind == "pax 0.1":
        zeros.pax_headers = {"GNU.sparse.map": f"0,1,{size},0", "GNU.sparse.size": str(size)}
    elif kind == "pax 1.0":
        zeros.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}
    else:
        zeros.type = tarfile.GNUTYPE_SPARSE
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(first, io.BytesIO(b"x"))
        tar.addfile(zeros, io.BytesIO(b"0\n".ljust(zeros.size, b"\0")))
    data = bytearray(buffer.getvalue())
    if kind == "old":
        numbered(data, 2, 483, size)
    return data


def refuse(folder: Path, data: bytes, said: str | None = None) -> None:
    """Both unpackers refuse an archive before they have written anything."""
    archive = folder / "evil.tar"
    archive.write_bytes(data)
    with pytest.raises(BadBundleError, match=said):
        unpack(archive, hashlib.sha256(data).hexdigest(), folder / "deep" / "out")
    with pytest.raises((entrypoint.EntrypointError, tarfile.TarError), match=said):
        entrypoint.unpack(archive, folder / "deep" / "half")
    assert [*folder.rglob("*")] == [archive]


@pytest.mark.parametrize("kind", ["old", "pax 0.1", "pax 1.0"])
def test_a_small_archive_of_endless_zeros_is_refused_before_anything_is_written(tmp_path: Path, kind: str) -> None:
    size = 1 << 28
    data = sparse(kind, size)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        zeros = tar.getmembers()[1]
    assert (len(data), zeros.issparse(), zeros.size) == (10240, True, size)
    refuse(tmp_path, data, "'zeros'")


@pytest.mark.parametrize("size", [-512, 1 << 40])
def test_a_file_longer_than_its_archive_is_refused_before_anything_is_written(tmp_path, size) -> None:
    data = bytearray(archive_of(member("a.py"), member("b.py")))
    numbered(data, 2, 124, size)
    refuse(tmp_path, data)


def test_a_file_that_comes_twice_and_a_flipped_bit_write_nothing(tmp_path: Path) -> None:
    data = archive_of(member("a.py"), member("./a.py"))
    for stored, said in ((data, "twice"), (bytes([data[0] ^ 1]) + data[1:], "damaged")):
        (tmp_path / "evil.tar").write_bytes(stored)
        with pytest.raises(BadBundleError, match=said):
            unpack(tmp_path / "evil.tar", hashlib.sha256(data).hexdigest(), tmp_path / "out")
        assert not (tmp_path / "out").exists()


@settings(max_examples=100)
@given(
    kind=st.sampled_from(["plain", "old", "pax 0.1", "pax 1.0"]),
    noise=st.lists(st.tuples(st.integers(0, 2047), st.integers(0, 255)), max_size=30),
    sizes=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([124, 483]), st.integers(-(1 << 22), 1 << 22)), max_size=3
    ),
    cut=st.integers(0, 4096),
)
def test_a_damaged_archive_with_a_right_digest_writes_neither_outside_nor_too_much(
    tmp_path_factory, kind, noise, sizes, cut
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    data = bytearray(archive_of(member("a.py"), member("pkg/b.py"))) if kind == "plain" else sparse(kind, 1 << 22)
    for offset, value in noise:
        data[offset] = value
    for block, at, number in sizes:
        numbered(data, block, at, number)
    data = data[: len(data) - cut]
    (folder / "x.tar").write_bytes(data)
    target, half = folder / "deep" / "out", folder / "deep" / "half"
    with contextlib.suppress(BadBundleError, OSError):
        unpack(folder / "x.tar", hashlib.sha256(data).hexdigest(), target)
    # Whatever the first stage raises ends it.
    with contextlib.suppress(Exception):
        entrypoint.unpack(folder / "x.tar", half)
    written = [path for path in folder.rglob("*") if path.is_file() and path != folder / "x.tar"]
    for where in (target, half):
        assert sum(path.stat().st_size for path in written if path.is_relative_to(where)) <= len(data)
    assert all(path.is_relative_to(target) or path.is_relative_to(half) for path in written)
