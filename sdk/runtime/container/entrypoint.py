"""The first stage of a container: gets the order and what it names, looks whether the image fits, hands over to the agent.

One file, fetched by its digest, with nothing but the standard library; it has to be read by a Python that is too old for
everything else, to say so. Nothing is unpacked or imported before its sha256 is the one that was planned.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import warnings
from pathlib import Path, PurePosixPath
from typing import Any, TextIO
from urllib.parse import quote

_INFRASTRUCTURE, _AGAIN = 3, 134
_VERSION = 1
_TENSORFLOWS = ["tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly"]
_TOKEN = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105
_WAITS_S = (1, 2, 4, 8, 16)
_PIECE = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# They would put things elsewhere, or add to what was asked for.
_KEPT_FROM_PIP = re.compile(r"PIP_(TARGET|PREFIX|ROOT|USER|DRY_RUN|REPORT|REQUIREMENT|EDITABLE|CONSTRAINT|GROUP)")
_PIP = ["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-color", "--quiet"]
_SHOWN_LINES = 15


class Refused(Exception):
    """The container cannot do what it was started for.

    Args:
        message: why, and what to do.
        code: the exit code to leave with.
    """

    def __init__(self, message: str, code: int = _INFRASTRUCTURE) -> None:
        super().__init__(message)
        self.code = code


def main(bucket: str, key: str, digest: str) -> int:
    """Do what the order says; return the exit code of the container.

    Args:
        bucket: where everything lies.
        key: the order's.
        digest: its sha256.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(_AGAIN))
    home = Path(tempfile.mkdtemp(prefix="podlift-"))
    try:
        order = json.loads(fetch(bucket, key, digest, home / "order.json").read_bytes())
        if order.get("version") != _VERSION:
            raise Refused(f"The order is of version {order.get('version')!r}, and this first stage knows {_VERSION}.")
        check_python(order)
        half = home / "runtime"
        unpack(fetch(bucket, order["runtime"]["key"], order["runtime"]["sha256"], home / "runtime.tar"), half)
        bundle = fetch(bucket, order["bundle"]["key"], order["bundle"]["sha256"], home / "bundle.tar")
        installed = install(order["requirements"], home)
        arrange(half, installed)
        check_tensorflow(order)
        check_checksums(half)
        agent = importlib.import_module("sdk.runtime.container.agent")
        # User code must not find the folder's contents before its own.
        sys.path.remove(str(half / "podlift"))
        return int(agent.main(order, bundle=str(bundle), home=str(home), installed=installed))
    except Refused as error:
        say(str(error), sys.stderr)
        return error.code
    finally:
        shutil.rmtree(home, ignore_errors=True)


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a line for people."""
    print(f"podlift: {text}", file=stream or sys.stdout, flush=True)


def fetch(bucket: str, key: str, digest: str, target: Path) -> Path:
    """Bring an object here, if it is the one that was planned.

    Raises:
        Refused: it cannot be had, or has another digest.
    """
    said, damaged = "", ""
    for number, wait_s in enumerate((*_WAITS_S, 0)):
        # What FUSE shows may be late; what is damaged there may be good when the service itself is asked.
        for source in ([_of_fuse] if number == 0 else []) + [_of_api]:
            try:
                found = source(bucket, key, target)
            except urllib.error.HTTPError as error:
                if error.code in (401, 403, 404):
                    raise Refused(_denied(bucket, key, error)) from None
                said = f"the service says {error.code} {error.reason}"
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                if source is _of_api:
                    said = f"{type(error).__name__}: {error}"
            else:
                if found == digest:
                    return target
                said = f"it has sha256 {found}, planned was {digest}"
                if found == damaged:
                    raise Refused(f"gs://{bucket}/{key} cannot be had: {said}.")
                damaged = found
        time.sleep(wait_s)
    raise Refused(f"gs://{bucket}/{key} cannot be had: {said}.", _AGAIN)


def _denied(bucket: str, key: str, error: urllib.error.HTTPError) -> str:
    said = error.read(2000).decode("utf-8", "replace").strip()
    try:
        said = json.loads(said)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        pass
    if error.code == 404:
        return f"gs://{bucket}/{key} is not there (404): {said}. Next: submit the run again; somebody has removed it."
    return (
        f"gs://{bucket}/{key} may not be read ({error.code}): {said}. Next: give the job's service account "
        f"roles/storage.objectUser on gs://{bucket}."
    )


def _of_fuse(bucket: str, key: str, target: Path) -> str:
    with open(f"/gcs/{bucket}/{key}", "rb") as source:
        return _copied(source, target)


def _of_api(bucket: str, key: str, target: Path) -> str:
    address = os.environ.get("PODLIFT_EMULATOR") or os.environ.get("STORAGE_EMULATOR_HOST") or ""
    headers = {}
    if not address:
        address, host = "https://storage.googleapis.com", os.environ.get("GCE_METADATA_HOST")
        with _asked(f"http://{host or 'metadata.google.internal'}{_TOKEN}", {"Metadata-Flavor": "Google"}) as answer:
            headers = {"Authorization": f"Bearer {json.loads(answer.read())['access_token']}"}
    address = address if "//" in address else f"http://{address}"
    url = f"{address.rstrip('/')}/storage/v1/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}?alt=media"
    with _asked(url, headers) as answer:
        return _copied(answer, target)


def _asked(url: str, headers: Any) -> Any:
    # No proxy leads to the machine's own server, or to an emulator.
    handlers = [urllib.request.ProxyHandler({})] if url.startswith("http:") else []
    return urllib.request.build_opener(*handlers).open(urllib.request.Request(url, headers=headers), timeout=60)  # noqa: S310


def _copied(source: Any, target: Path) -> str:
    digest = hashlib.sha256()
    with target.open("wb") as file:
        while True:
            data = source.read(_PIECE)
            if not data:
                return digest.hexdigest()
            digest.update(data)
            file.write(data)


def unpack(archive: Path, target: Path) -> None:
    """Unpack an archive whose digest was right: files and folders, none of them outside of its own.

    Raises:
        Refused: it holds something else.
    """
    found, left = {}, archive.stat().st_size
    with tarfile.open(str(archive), mode="r:") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            left -= tarfile.BLOCKSIZE + member.size
            # A sparse file of any length needs one block of the archive.
            is_file = member.isreg() and not member.issparse() and member.size >= 0
            if not is_file or left < 0 or path in found or path.is_absolute() or ".." in path.parts or not path.parts:
                raise Refused(f"The runtime half holds {member.name!r}, which is none of its files.")
            found[path] = member
        for path, member in found.items():
            place = target.joinpath(*path.parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            data: Any = tar.extractfile(member)
            with data, place.open("xb") as file:
                shutil.copyfileobj(data, file, _PIECE)


def check_python(order: Any) -> None:
    """Refuse an image whose Python podlift does not run under."""
    low, high = order["python"]
    if not _version(low) <= sys.version_info[:2] <= _version(high):
        name, version = tensorflow()
        raise Refused(
            f"The Python of this image does not fit: it has Python {platform.python_version()}"
            f"{f' and {name} {version}' if name else ''}, and podlift needs Python {low} to {high}. Next: choose an image "
            "with one."
        )


def check_tensorflow(order: Any) -> None:
    """Refuse an image whose TensorFlow podlift does not know; an order that names no range needs none."""
    if not order.get("tensorflow"):
        return
    low, high = order["tensorflow"]
    name, version = tensorflow()
    wanted = f"podlift trains with TensorFlow {low} to {high}"
    here = f"Python {platform.python_version()}"
    if not name:
        raise Refused(
            f"This image has no TensorFlow: its {here} has none of {', '.join(_TENSORFLOWS)}, and {wanted}. Next: choose an "
            "image with one of them, or name it among the requirements."
        )
    # Where CPUs stand for a TPU, the limits of what is built for TPUs mean nothing.
    stand_in = bool(os.environ.get("PODLIFT_EMULATOR") and order.get("payload", {}).get("tpu"))
    if not stand_in and not _version(low) <= _version(version) <= _version(high):
        raise Refused(
            f"The TensorFlow of this image does not fit: it has {name} {version} with {here}, and {wanted}. Next: choose "
            "another image."
        )


def tensorflow() -> tuple[str, str]:
    """Return name and version of the TensorFlow that would be imported, empty where there is none."""
    try:
        metadata = importlib.import_module("importlib.metadata")
    except ImportError:
        return "", ""
    for name in _TENSORFLOWS:
        try:
            return name, str(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return "", ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def install(requirements: Any, home: Path) -> str:
    """Install what the image lacks into a folder of its own, and return that; "" where it lacks nothing.

    Raises:
        Refused: pip could not.
    """
    name, version = tensorflow()
    lines = []
    for line in requirements.get("lines", ()):
        own = _normal(line)
        if own in _TENSORFLOWS and name:
            # It belongs to the image's drivers; the range that was checked is what counts.
            say(f"the image's {name} {version} is used for {line!r}")
        elif own != "podlift":
            lines.append(line)
    if not lines:
        return ""
    (home / "requirements.txt").write_text("\n".join([*requirements.get("options", ()), *lines, ""]))
    (home / "constraints.txt").write_text("\n".join([*requirements.get("constraints", ()), ""]))
    report, target = home / "report.json", home / "installed"
    _pip(["--dry-run", "--report", str(report), "-r", "requirements.txt", "-c", "constraints.txt"], home, lines)
    found = [item for item in json.loads(report.read_bytes())["install"] if not _of_image(item, bool(name))]
    if not found:
        return ""
    pins = [_pin(item) for item in found]
    say(f"the image lacks {', '.join(pins)}")
    hashes = [item.get("download_info", {}).get("archive_info", {}).get("hashes", {}).get("sha256") for item in found]
    if all(hashes):
        pins = [f"{pin} --hash=sha256:{digest}" for pin, digest in zip(pins, hashes)]  # noqa: B905
    (home / "lacking.txt").write_text("\n".join([*requirements.get("options", ()), *pins, ""]))
    _pip(["--no-deps", "--target", str(target), "-r", "lacking.txt"], home, pins)
    return str(target)


def _of_image(item: Any, has_tensorflow: bool) -> bool:
    name = _normal(item["metadata"]["name"])
    return name == "podlift" or (has_tensorflow and name in _TENSORFLOWS)


def _pin(item: Any) -> str:
    about = item["metadata"]
    if item.get("is_direct"):
        return f"{about['name']} @ {item['download_info']['url']}"
    return f"{about['name']}=={about['version']}"


def _normal(line: str) -> str:
    found = _NAME.match(line.strip())
    return re.sub(r"[-_.]+", "-", found.group()).lower() if found else ""


def _pip(arguments: Any, home: Path, wanted: Any) -> None:
    env = {name: value for name, value in os.environ.items() if not _KEPT_FROM_PIP.fullmatch(name)}
    done = subprocess.run(
        [sys.executable, *_PIP, *arguments], cwd=str(home), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = done.stdout.decode("utf-8", "replace").strip()
    if output:
        say(f"pip says:\n{output}")
    if done.returncode:
        last = "\n".join(output.splitlines()[-_SHOWN_LINES:])
        raise Refused(
            f"This image lacks something of the requirements ({', '.join(wanted)}), and pip could not install it:\n{last}\n"
            "Next: put it into the image, or give the job a way to a package index (--index-url among the requirements)."
        )


def arrange(half: Path, installed: str) -> None:
    """Let this process find podlift first, then what was installed, then the image's packages, then those brought along."""
    rest = [path for path in sys.path if path]
    sys.path[:] = [str(half / "podlift"), *([installed] if installed else []), *rest, str(half / "vendor")]
    importlib.invalidate_caches()


def check_checksums(half: Path) -> None:
    """Refuse to train with checksums that take longer than the training."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            implementation = importlib.import_module("google_crc32c").implementation
        except ImportError:
            implementation = ""
    if implementation != "c":
        about = json.loads((half / "about.json").read_bytes())
        here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        raise Refused(
            f"This image has no compiled crc32c, without which checkpoints cannot be kept: it has {here}, and the "
            f"google-crc32c that came along is for Python {about['python']} on {about['platform']}. Next: pip install "
            "google-crc32c in the image, or name it among the requirements."
        )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
