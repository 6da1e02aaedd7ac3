"""Python packages of jobs: their installation by an executor image, and the requirements of their builds without a network."""

from __future__ import annotations

import configparser
import os
import shlex
import threading
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from ..gcs.errors import StorageApiError
from .bucket_fs import BucketFs

# As Google's images do it: first the packages themselves, then their requirements. The module is $0. Each step first uses the
# packages of the emulator's interpreter, and an index only if they are not enough.
_INSTALL = """
install() {{ python3 -m pip install -q --disable-pip-version-check "$@" {files}; }}
local='--no-index --no-build-isolation'
{{ install $local --no-deps --force-reinstall >/dev/null 2>&1 || install --no-deps --force-reinstall; }} &&
  {{ install $local >/dev/null 2>&1 || install; }} || {{
  echo {failed} >&2
  exit 1
}}
exec python3 -m "$0" "$@"
"""
_FAILED = (
    "podlift emulator: the packages cannot be installed here. Their requirements must be in this interpreter, or in an "
    "index that this machine can reach."
)
_MACHINE_WIDE = ("/etc/xdg/pip/pip.conf", "/etc/pip.conf")
_lock = threading.Lock()


def package_command(spec: Mapping[str, Any], home: Path, buckets: BucketFs) -> list[str]:
    """Fetch the packages of a `pythonPackageSpec` into `home`, and return the command that installs and runs them."""
    fetched = []
    for number, uri in enumerate(spec.get("packageUris", ())):
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        file = home / str(number) / name.rpartition("/")[2]
        file.parent.mkdir(exist_ok=True)
        try:
            buckets.download(bucket, name, file)
        except (StorageApiError, OSError) as error:
            message = f"podlift emulator: the package {uri} cannot be read: {error}"
            return ["/bin/sh", "-c", f"echo {shlex.quote(message)} >&2; exit 1"]
        fetched.append(shlex.quote(str(file)))
    script = _INSTALL.format(files=" ".join(fetched), failed=shlex.quote(_FAILED))
    return ["/bin/sh", "-c", script, spec["pythonModule"], *spec.get("args", ())]


def configure_pip(environment: Path, wheels: Path) -> None:
    """Let pip find the interpreter's setuptools in an environment: an isolated build of a script package needs no network."""
    with _lock:
        wheel = _setuptools_wheel(wheels)
    if wheel is None:
        return
    machine = configparser.RawConfigParser()
    try:
        machine.read(_MACHINE_WIDE)
        links = machine.get("global", "find-links", fallback="").split()
    except (configparser.Error, UnicodeError):
        links = []
    # A list of pip's configuration hides the list of a wider one.
    lines = "\n".join(f"    {url}" for url in [*links, wheels.as_uri()])
    (environment / "pip.conf").write_text(f"[global]\nfind-links =\n{lines}\n")


def _setuptools_wheel(folder: Path) -> Path | None:
    """Return the wheel of the emulator's setuptools, created if it is not there yet; None if there is no setuptools."""
    try:
        package = metadata.distribution("setuptools")
    except metadata.PackageNotFoundError:
        return None
    wheel = folder / f"setuptools-{package.version}-py3-none-any.whl"
    if wheel.exists():
        return wheel
    files = [path for path in package.files or () if path.suffix != ".pyc" and ".." not in path.parts]
    # A system's package manager may install it without the files of a wheel.
    if not {"WHEEL", "RECORD"} <= {path.name for path in files}:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    part = wheel.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as archive:
        for path in files:
            if (file := Path(str(path.locate()))).is_file():
                archive.write(file, path.as_posix())
    os.replace(part, wheel)
    return wheel
