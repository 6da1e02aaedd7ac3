"""The first stage of a container of podlift: fetches a Python file from the root, checks its sha256 and runs it.

This text is the container's command. It needs only the standard library of any Python 3.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import sys
import time
import urllib.error
import urllib.request
from functools import partial
from typing import Any, BinaryIO, Mapping  # noqa: UP035  # for an old Python too
from urllib.parse import quote

GOOGLE = "https://storage.googleapis.com"
_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105
# The exit code without another try, and the variable with the code for a restart.
_INFRASTRUCTURE, _RESTART = 3, "PODLIFT_RESTART_CODE"


class DownloadError(Exception):
    """An object cannot be downloaded. `code` is the exit code of the container."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def with_scheme(address: str) -> str:
    return (address if "://" in address else f"http://{address}").rstrip("/")


def token_url(environ: Mapping[str, str]) -> str:
    return f"http://{environ.get('GCE_METADATA_HOST', '').strip() or 'metadata.google.internal'}{_TOKEN}"


def open_url(url: str, headers: Mapping[str, str], timeout_s: float = 60.0) -> Any:
    # A proxy leads neither to the metadata server nor to an emulator.
    handlers = [] if url.startswith(GOOGLE) else [urllib.request.ProxyHandler({})]
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310
    return urllib.request.build_opener(*handlers).open(request, timeout=timeout_s)


def fetch(bucket: str, key: str, digest: str, file: BinaryIO) -> None:
    """Write an object with this sha256 into an open file; the bucket "/" is a shared folder."""
    problem, damaged = "", ""
    if bucket == "/":
        return _fetch_shared(f"/{key}", digest, file)
    # A mounted bucket may show an object late or damaged although the service has it.
    for source, wait_s in ((_mounted, 0), (_api, 1), (_api, 2), (_api, 4), (_api, 8), (_api, 16), (_api, 0)):
        try:
            actual = _copy(source(bucket, key), file)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403, 404):
                raise DownloadError(_denied(bucket, key, error), _INFRASTRUCTURE) from None
            problem = f"the service responded {error.code} {error.reason}"
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            if actual == digest:
                return None
            problem = f"it has sha256 {actual}, and {digest} was planned"
            if actual == damaged:
                raise DownloadError(f"gs://{bucket}/{key} cannot be downloaded: {problem}.", _INFRASTRUCTURE)
            damaged = actual
        time.sleep(wait_s)
    code = int(os.environ.get(_RESTART) or _INFRASTRUCTURE)
    raise DownloadError(f"gs://{bucket}/{key} cannot be downloaded: {problem}.", code)


def _fetch_shared(path: str, digest: str, file: BinaryIO) -> None:
    for wait_s in (1, 2, 0):  # it may be new
        try:
            with open(path, "rb") as source:
                actual = _copy(source, file)
        except OSError as error:
            problem = str(error.strerror)
        else:
            if actual == digest:
                return
            problem = f"it has sha256 {actual}, and {digest} was planned"
        time.sleep(wait_s)
    raise DownloadError(
        f"{path} cannot be read on {os.uname().nodename}: {problem}. Next: a --root that all machines see at the same path.",
        _INFRASTRUCTURE,
    )


def _mounted(bucket: str, key: str) -> Any:
    return open(f"/gcs/{bucket}/{key}", "rb")


def _api(bucket: str, key: str) -> Any:
    headers, address = {}, os.environ.get("PODLIFT_EMULATOR") or os.environ.get("STORAGE_EMULATOR_HOST") or ""
    if not address:
        with open_url(token_url(os.environ), {"Metadata-Flavor": "Google"}) as answer:
            headers = {"Authorization": f"Bearer {json.loads(answer.read())['access_token']}"}
    path = f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}?alt=media"
    return open_url(with_scheme(address or GOOGLE) + path, headers)


def _copy(source: Any, file: BinaryIO) -> str:
    file.seek(0)
    file.truncate()
    digest = hashlib.sha256()
    with source:
        for data in iter(partial(source.read, 1 << 20), b""):
            digest.update(data)
            file.write(data)
    return digest.hexdigest()


def _denied(bucket: str, key: str, error: urllib.error.HTTPError) -> str:
    message = error.read(2000).decode("utf-8", "replace").strip()
    try:
        message = json.loads(message)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        pass
    if error.code == 404:
        return f"gs://{bucket}/{key} does not exist (404): {message}. It was removed. Next: submit the run again."
    return (
        f"gs://{bucket}/{key} cannot be read ({error.code}): {message}. Next: give the job's service account "
        f"roles/storage.objectUser on gs://{bucket}."
    )


def main(bucket: str, key: str, digest: str, launch_key: str, launch_digest: str) -> int:
    """Run `main` of a file in the bucket. It gets `fetch` for other objects of the bucket, and returns the exit code."""
    try:
        text = io.BytesIO()
        fetch(bucket, key, digest, text)
        program: Any = {"__name__": "podlift_entrypoint"}
        exec(compile(text.getvalue(), "podlift_entrypoint.py", "exec"), program)  # noqa: S102
        return int(program["main"](partial(fetch, bucket), launch_key, launch_digest))
    except DownloadError as error:
        print(f"podlift: {error}", file=sys.stderr)  # noqa: T201
        return error.code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
