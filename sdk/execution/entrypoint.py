"""A container's entrypoint: downloads the launch spec and its archives, checks the image, hands over to the agent.

It is one file that needs the standard library only. The container's command, `storage/gcs/download.py`, fetches it by
its digest and calls `main`. It must also run under a Python that is too old for everything else, in order to report that.
Nothing is unpacked or imported unless its sha256 is the planned one.
"""

from __future__ import annotations

import gc
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
import threading
import time
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Callable, TextIO  # noqa: UP035

_INFRASTRUCTURE = 3
# Set by the backend: the exit code after which the service starts this container again.
_RESTART = "PODLIFT_RESTART_CODE"
# Set by a backend whose containers are child processes: the id of a process; this one ends with it.
_PARENT, _PARENT_POLL_S, _LEAVE_S = "PODLIFT_ENDS_WITH", 0.5, 60.0
_VERSION = 1
_TENSORFLOWS = ["tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tensorflow-gpu", "tensorflow-rocm", "tf-nightly"]
_CHUNK = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
# They would change the packages that pip installs, or their folder.
_HIDDEN_FROM_PIP = re.compile(r"PIP_(TARGET|PREFIX|ROOT|USER|DRY_RUN|REPORT|REQUIREMENT|EDITABLE|CONSTRAINT|GROUP)")
_PIP = ["-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-color", "--quiet"]
_SHOWN_LINES = 15

# Writes an object with this key and sha256 into an open file.
Fetch = Callable[[str, str, BinaryIO], None]


class EntrypointError(Exception):
    """The container cannot run its task. `code` is the exit code."""

    def __init__(self, message: str, code: int = _INFRASTRUCTURE) -> None:
        super().__init__(message)
        self.code = code


def main(fetch: Fetch, key: str, digest: str) -> int:
    """Run the launch spec with that key and sha256; return the exit code of the container."""
    code = int(os.environ.get(_RESTART) or _INFRASTRUCTURE)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(code))
    if _PARENT in os.environ:
        parent = int(os.environ.pop(_PARENT))
        threading.Thread(target=end_with, args=[parent], name="podlift-parent", daemon=True).start()
    home = Path(tempfile.mkdtemp(prefix="podlift-"))
    try:
        spec = json.loads(fetched(fetch, {"key": key, "sha256": digest}, home / "launch_spec.json").read_bytes())
        if spec.get("version") != _VERSION:
            raise EntrypointError(
                f"The launch spec has version {spec.get('version')!r}. This entrypoint reads {_VERSION}."
            )
        check_python(spec)
        runtime = home / "runtime"
        unpack(fetched(fetch, spec["runtime"], home / "runtime.tar"), runtime)
        if "main" in spec:
            # A program of podlift's own, which needs neither TensorFlow nor the bundle.
            set_path(runtime, "")
            return int(loaded(spec["main"]).main(spec, home=str(home)))
        bundle = fetched(fetch, spec["bundle"], home / "bundle.tar")
        installed = install(spec["requirements"], home)
        set_path(runtime, installed)
        check_tensorflow(spec)
        installed = with_checksums(runtime, spec["requirements"], home, installed)
        container = loaded("sdk.execution.container")
        # The program must not import from this folder before its own.
        sys.path.remove(str(runtime / "podlift"))
        return int(container.main(spec, bundle=str(bundle), home=str(home), installed=installed))
    except EntrypointError as error:
        say(str(error), sys.stderr)
        return error.code
    finally:
        shutil.rmtree(home, ignore_errors=True)


def end_with(parent: int) -> None:
    """Stop this process as a service would once its parent is gone: nothing else would end it."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        say("the process that started this container is gone", sys.stderr)
    except OSError:
        # That process was the reader.
        pass
    time.sleep(_LEAVE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def loaded(name: str) -> Any:
    # Imports leave little garbage, and looking for it takes a tenth of their time.
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.enable()


def say(text: str, stream: TextIO | None = None) -> None:
    print(f"podlift: {text}", file=stream or sys.stdout, flush=True)


def fetched(fetch: Fetch, archive: Any, target: Path) -> Path:
    with target.open("wb") as file:
        fetch(archive["key"], archive["sha256"], file)
    return target


def unpack(archive: Path, target: Path) -> None:
    """Unpack an archive of plain files, none of them outside of the target folder."""
    members, left = {}, archive.stat().st_size
    with tarfile.open(str(archive), mode="r:") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            left -= tarfile.BLOCKSIZE + member.size
            # A sparse file of any length needs one block of the archive.
            is_file = member.isreg() and not member.issparse() and member.size >= 0
            if not is_file or left < 0 or path in members or path.is_absolute() or ".." in path.parts or not path.parts:
                raise EntrypointError(f"The runtime archive holds {member.name!r}, which does not belong to it.")
            members[path] = member
        for path, member in members.items():
            file_path = target.joinpath(*path.parts)
            file_path.parent.mkdir(parents=True, exist_ok=True)
            data: Any = tar.extractfile(member)
            with data, file_path.open("xb") as file:
                shutil.copyfileobj(data, file, _CHUNK)


def check_python(spec: Any) -> None:
    low, high = spec["python"]
    if not _version(low) <= sys.version_info[:2] <= _version(high):
        name, version = tensorflow()
        with_tensorflow = f" and {name} {version}" if name else ""
        raise EntrypointError(
            f"The Python of this image is not supported: it has Python {platform.python_version()}{with_tensorflow}, and "
            f"podlift needs Python {low} to {high}. Next: choose an image with one."
        )


def check_tensorflow(spec: Any) -> None:
    """Refuse an image with a TensorFlow outside of the spec's range, if the spec has one."""
    if not spec.get("tensorflow"):
        return
    low, high = spec["tensorflow"]
    name, version = tensorflow()
    limits = f"podlift trains with TensorFlow {low} to {high}"
    here = f"Python {platform.python_version()}"
    if not name:
        raise EntrypointError(
            f"This image has no TensorFlow: its {here} has none of {', '.join(_TENSORFLOWS)}, and {limits}. Next: choose an "
            "image with one of them, or add it to the requirements."
        )
    # The range is about builds for TPUs: it does not apply if CPUs stand in for the TPU.
    stand_in = bool(os.environ.get("PODLIFT_EMULATOR") and spec.get("payload", {}).get("tpu"))
    if not stand_in and not _version(low) <= _version(version) <= _version(high):
        raise EntrypointError(
            f"The TensorFlow of this image is not supported: it has {name} {version} with {here}, and {limits}. Next: choose "
            "another image."
        )


def tensorflow() -> tuple[str, str]:
    """Return name and version of the TensorFlow that would be imported; empty if there is none."""
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
    """Install the packages that the image lacks into a separate folder, and return it; "" if it lacks nothing."""
    name, version = tensorflow()
    lines = []
    for line in requirements.get("lines", ()):
        own = _normal(line)
        if own in _TENSORFLOWS and name:
            # It matches the image's drivers; `check_tensorflow` checks its version.
            say(f"the image's {name} {version} is used for {line!r}")
        elif own != "podlift":
            lines.append(line)
    if has_all(lines, requirements.get("constraints", ())):
        return ""
    (home / "requirements.txt").write_text("\n".join([*requirements.get("options", ()), *lines, ""]))
    (home / "constraints.txt").write_text("\n".join([*requirements.get("constraints", ()), ""]))
    report, target = home / "report.json", home / "installed"
    _pip(["--dry-run", "--report", str(report), "-r", "requirements.txt", "-c", "constraints.txt"], home, lines)
    installed = [item for item in json.loads(report.read_bytes())["install"] if not _is_in_image(item, bool(name))]
    if not installed:
        return ""
    pins = [_pin(item) for item in installed]
    say(f"the image lacks {', '.join(pins)}")
    hashes = [
        item.get("download_info", {}).get("archive_info", {}).get("hashes", {}).get("sha256") for item in installed
    ]
    if all(hashes):
        pins = [f"{pin} --hash=sha256:{digest}" for pin, digest in zip(pins, hashes)]  # noqa: B905
    (home / "lacking.txt").write_text("\n".join([*requirements.get("options", ()), *pins, ""]))
    _pip(["--no-deps", "--target", str(target), "-r", "lacking.txt"], home, pins)
    return str(target)


def has_all(lines: Any, constraints: Any) -> bool:
    """Return whether the image has these requirements and all of theirs; False if only pip can decide.

    pip, which takes two seconds to find that out, would keep the installed versions then.
    """
    try:
        requirement: Any = importlib.import_module("packaging.requirements").Requirement
        metadata = importlib.import_module("importlib.metadata")
    except ImportError:
        return not lines
    paths = [path for path in sys.path if path]
    try:
        limits = [limit for limit in map(requirement, constraints) if not limit.marker or limit.marker.evaluate()]
        due = [(requirement(line.partition(" --hash=")[0]), "") for line in lines]
        closure: set[tuple[str, str]] = set()
        while due:
            needed, extra = due.pop()
            if needed.marker and not needed.marker.evaluate({"extra": extra}):
                continue
            own = _normal(needed.name)
            distribution = next(iter(metadata.distributions(name=needed.name, path=paths)), None)
            if distribution is None or needed.url:
                return False
            for line in (needed, *(limit for limit in limits if _normal(limit.name) == own)):
                if line.url or not line.specifier.contains(distribution.version, prereleases=True):
                    return False
            new = {(own, extra) for extra in ("", *needed.extras)} - closure
            closure |= new
            due += [(requirement(line), extra) for _, extra in new for line in distribution.requires or ()]
    except (TypeError, ValueError):
        # A malformed requirement, version or marker: pip reports it, or can read it.
        return False
    return True


def _is_in_image(item: Any, has_tensorflow: bool) -> bool:
    name = _normal(item["metadata"]["name"])
    return name == "podlift" or (has_tensorflow and name in _TENSORFLOWS)


def _pin(item: Any) -> str:
    metadata = item["metadata"]
    if item.get("is_direct"):
        return f"{metadata['name']} @ {item['download_info']['url']}"
    return f"{metadata['name']}=={metadata['version']}"


def _normal(line: str) -> str:
    match = _NAME.match(line.strip())
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def _pip(arguments: Any, home: Path, requirements: Any) -> None:
    env = {name: value for name, value in os.environ.items() if not _HIDDEN_FROM_PIP.fullmatch(name)}
    done = subprocess.run(
        [sys.executable, *_PIP, *arguments], cwd=str(home), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = done.stdout.decode("utf-8", "replace").strip()
    if output:
        say(f"pip printed:\n{output}")
    if done.returncode:
        last = "\n".join(output.splitlines()[-_SHOWN_LINES:])
        raise EntrypointError(
            f"This image lacks some requirements ({', '.join(requirements)}), and pip could not install them:\n{last}\n"
            "Next: install them in the image, or give the job access to a package index (--index-url in the requirements)."
        )


def set_path(runtime: Path, installed: str) -> None:
    """Search podlift first, then the installed packages, then the image's, then the ones in the runtime archive."""
    rest = [path for path in sys.path if path]
    sys.path[:] = [str(runtime / "podlift"), *([installed] if installed else []), *rest, str(runtime / "vendor")]
    importlib.invalidate_caches()


def with_checksums(runtime: Path, requirements: Any, home: Path, installed: str) -> str:
    """Install a compiled crc32c if there is none, and return the folder of installed packages.

    In pure Python, checksums would take longer than the training. The image's package is used, else the C library in the
    runtime archive, which fits every Python of its platform; pip is the last resort.
    """
    checksums = importlib.import_module("sdk.storage.checksums")
    if checksums.is_compiled():
        return installed
    about = json.loads((runtime / "about.json").read_bytes())
    target, pin = installed or str(home / "installed"), f"google-crc32c=={about['google-crc32c']}"
    (home / "checksums.txt").write_text("\n".join([*requirements.get("options", ()), pin, ""]))
    why = ""
    try:
        _pip(["--no-deps", "--only-binary=:all:", "--upgrade", "--target", target, "-r", "checksums.txt"], home, [pin])
    except EntrypointError as error:
        why = f"\n{error}"
    if not installed:
        sys.path.insert(1, target)
    checksums.search_again()
    if checksums.is_compiled():
        say(
            f"installed {pin}: this image has no compiled crc32c, and the one in the runtime archive is for another platform"
        )
        return target
    raise EntrypointError(
        f"This image has no compiled crc32c, which checkpoints need: it has Python {platform.python_version()} on "
        f"{platform.system()} {platform.machine()}, the google-crc32c in the runtime archive is for {about['platform']}, and "
        f"pip found none for this image.{why}\nNext: pip install google-crc32c in the image, or submit from a machine of "
        "its platform."
    )
