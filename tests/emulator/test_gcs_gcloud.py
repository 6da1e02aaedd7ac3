"""`gcloud storage` against the emulator, where it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from support import LONG_LIMIT_S as LIMIT_S

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
]


@pytest.fixture
def gcloud(gcs, tmp_path):
    """Run `gcloud storage ...` with a configuration of its own; return what it prints."""

    def run(*words: str) -> str:
        env = {
            **{name: text for name, text in os.environ.items() if "proxy" not in name.lower()},
            "HOME": str(tmp_path),
            "CLOUDSDK_CONFIG": str(tmp_path / "config"),
            "CLOUDSDK_CORE_PROJECT": "podlift",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            # Its uploads leave out the path of the URL: the token comes as credentials.
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(gcs.folder / "token"),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{gcs.url}/storage/v1/",
        }
        done = subprocess.run(["gcloud", "storage", *words], env=env, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_files_go_up_are_listed_come_back_and_go(gcs, gcloud, tmp_path) -> None:
    gcloud("buckets", "create", "gs://bucket")
    bucket = gcs.client().get_bucket("bucket")
    (tmp_path / "small file").write_bytes(b"small")
    (tmp_path / "large").write_bytes(os.urandom(20 << 20))
    gcloud("cp", str(tmp_path / "small file"), str(tmp_path / "large"), "gs://bucket/folder/")
    assert bucket.blob("folder/small file").download_as_bytes() == b"small"
    assert bucket.blob("folder/large").download_as_bytes(checksum="crc32c") == (tmp_path / "large").read_bytes()
    assert gcloud("ls", "gs://bucket/folder/").split("\n")[:2] == [
        "gs://bucket/folder/large",
        "gs://bucket/folder/small file",
    ]
    gcloud("cp", "gs://bucket/folder/large", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "large").read_bytes()
    gcloud("cp", "gs://bucket/folder/large", "gs://bucket/copy")
    assert "small" in gcloud("cat", "gs://bucket/folder/small file")
    gcloud("rm", "--recursive", "gs://bucket/folder")
    assert [each.name for each in bucket.list_blobs()] == ["copy"]


def test_a_bucket_goes_with_all_that_is_in_it(gcs, gcloud) -> None:
    for access in ("--uniform-bucket-level-access", "--no-uniform-bucket-level-access"):
        gcloud("buckets", "create", "gs://whole", access)
        bucket = gcs.client().get_bucket("whole")
        for name in ("a", "folder/b", "folder/deep/c"):
            bucket.blob(name).upload_from_string(name)
        gcloud("rm", "--recursive", "gs://whole")
        assert gcs.client().lookup_bucket("whole") is None
