"""crc32c in an image with a google-crc32c of pure Python: by the C library of a wheel, or not at all."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import google_crc32c
import pytest

from sdk.storage import checksums

KNOWN = (b"123456789", 0xE3069283)
WHEEL = Path(google_crc32c.__file__).parents[1]


def slow(crc: int, data: bytes) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.fixture
def pure(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An image with a package that has no extension module for its Python."""
    checksums.search_again()
    monkeypatch.setitem(sys.modules, "google_crc32c", SimpleNamespace(implementation="python", extend=slow))
    yield
    monkeypatch.undo()
    checksums.search_again()


@pytest.mark.usefixtures("pure")
def test_the_c_library_of_a_wheel_counts_as_compiled_and_gives_the_same_sums() -> None:
    if not [*WHEEL.glob("google_crc32c.libs/libcrc32c*.so*")]:
        pytest.skip("google-crc32c is not installed from a wheel for Linux")
    assert checksums.is_compiled()
    assert checksums.crc32c([KNOWN[0]]) == KNOWN[1]
    data = random.Random(1).randbytes(1000) + b"\0" * 10
    assert checksums.crc32c([data[:7], memoryview(data)[7:500], bytearray(data[500:])]) == slow(0, data)
    assert checksums.crc32c([data], crc=5) == slow(5, data)


@pytest.mark.usefixtures("pure")
@pytest.mark.parametrize("wrong", ["damaged", "another library", "other sums"])
def test_a_library_that_does_not_compute_crc32c_is_not_used(tmp_path, monkeypatch, wrong: str) -> None:
    library = tmp_path / "google_crc32c.libs" / "libcrc32c-1.so"
    library.parent.mkdir()
    library.write_bytes(b"Mach-O")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def load(path: str) -> object:
        assert path == str(library)
        return SimpleNamespace() if wrong == "another library" else SimpleNamespace(crc32c_extend=Extend())

    if wrong != "damaged":
        monkeypatch.setattr(ctypes, "CDLL", load)
    assert not checksums.is_compiled()
    assert checksums.crc32c([KNOWN[0]]) == KNOWN[1], "by the package, however slow"


class Extend:
    """A function of a C library that returns something else."""

    restype: object = None
    argtypes: object = None

    def __call__(self, crc: int, data: bytes, size: int) -> int:
        return 42
