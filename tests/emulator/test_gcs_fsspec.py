"""gcsfs against the emulator: its basic operations, in a separate process because it reads its environment when imported."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from support import LIMIT_S

pytest.importorskip("gcsfs")

PRELUDE = """
import os, gcsfs, fsspec
fs = gcsfs.GCSFileSystem(token="anon", project="p", skip_instance_cache=True)
fs.invalidate_cache()

def raises(kind, attempt):
    try:
        attempt()
    except kind:
        return True
    raise AssertionError("nothing was raised")
"""


@pytest.fixture
def run(gcs, bucket):
    """Run a program with a file system `fs`; return its output."""

    def runner(program: str) -> str:
        env = {
            **{name: text for name, text in os.environ.items() if "proxy" not in name.lower()},
            "STORAGE_EMULATOR_HOST": gcs.url,
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        command = [sys.executable, "-c", PRELUDE + textwrap.dedent(program)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return runner


def test_files_are_written_read_listed_and_removed(run, bucket) -> None:
    run("""
        fs.pipe_file("bucket/a/one", b"1" * 10)
        fs.pipe({"bucket/a/two ?#%": b"22", "bucket/b/three": b"333"})
        assert fs.cat_file("bucket/a/two ?#%") == b"22"
        assert fs.cat_file("bucket/a/one", start=2, end=5) == b"111"
        assert sorted(fs.ls("bucket/a", detail=False)) == ["bucket/a/one", "bucket/a/two ?#%"]
        assert sorted(fs.find("bucket")) == ["bucket/a/one", "bucket/a/two ?#%", "bucket/b/three"]
        assert sorted(fs.glob("bucket/*/t*")) == ["bucket/a/two ?#%", "bucket/b/three"]
        assert fs.info("bucket/a/one")["size"] == 10
        assert fs.isdir("bucket/a") and fs.isfile("bucket/a/one") and not fs.exists("bucket/zzz")
        assert fs.du("bucket") == 15
        fs.cp_file("bucket/a/one", "bucket/c")
        fs.mv("bucket/c", "bucket/d")
        assert fs.exists("bucket/d") and not fs.exists("bucket/c")
        fs.rm("bucket/a", recursive=True)
        assert sorted(fs.find("bucket")) == ["bucket/b/three", "bucket/d"]
        raises(FileNotFoundError, lambda: fs.cat_file("bucket/a/one"))
        raises(FileNotFoundError, lambda: fs.ls("nowhere-at-all"))
        for size in (6, 6 << 20):
            raises(FileExistsError, lambda: fs.pipe_file("bucket/d", bytes(size), mode="create"))
        assert fs.cat_file("bucket/d") == b"1" * 10
    """)
    assert sorted(each.name for each in bucket.list_blobs()) == ["b/three", "d"]
