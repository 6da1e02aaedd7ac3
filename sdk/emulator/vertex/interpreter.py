"""The Python environment of an emulated job: what it installs goes into an environment of its own, which ends with it.

A container has its own disk, so programs install packages freely, over those of the image and for the user. Here the
emulator's own interpreter takes the place of the image. Each start of a replica gets an environment that finds the packages
of that interpreter after its own: pip installs, upgrades and removes there, and leaves the others alone.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import site
import sys
import sysconfig
import venv
from pathlib import Path

# In a folder with other programs, only Python's own files are read-only.
_SHARED = ("/", "/usr", "/usr/local")
_SCRIPT_BYTES = 1 << 16
_CFG = "include-system-site-packages = "


def make_environment(folder: Path) -> dict[str, str]:
    """Make the environment of one start of a replica in a new folder, and return the variables that activate it.

    The folder also holds the user's packages, as of `pip install --user`.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    _allow_user_installs(folder / "pyvenv.cfg")
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # By addsitedir: a line with only a path would skip the .pth files in that folder.
    lines = [f"import site; site.addsitedir({place!r})" for place in site_folders()]
    (packages / "podlift-emulator.pth").write_text("\n".join([*lines, *_pip_of_python(), ""]))
    python = shlex.quote(str(folder / "bin" / "python"))
    pips = dict.fromkeys(("pip", "pip3", f"pip3.{sys.version_info[1]}"), "-m pip")
    for name, words in {**_scripts(), **pips}.items():
        place = folder / "bin" / name
        if not place.exists():
            place.write_text(f'#!/bin/sh\nexec {python} {words} "$@"\n')
            place.chmod(0o755)
    return {"PYTHONUSERBASE": str(folder), "PATH": f"{folder / 'bin'}{os.pathsep}{Path(sys.executable).parent}"}


def _allow_user_installs(cfg: Path) -> None:
    """Let pip install for the user, whose packages are in the environment.

    Python reads "False" as false; pip rejects `--user` only for "false".
    """
    cfg.write_text(cfg.read_text().replace(f"{_CFG}false", f"{_CFG}False"))


@functools.cache
def site_folders() -> tuple[str, ...]:
    """Return the package folders of the interpreter that runs the emulator, in its order."""
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    found = [*users, *site.getsitepackages()]
    return tuple(place for place in dict.fromkeys(found) if place in sys.path and Path(place).is_dir())


@functools.cache
def read_only_folders() -> tuple[str, ...]:
    """Return the folders of this machine's interpreters, which no job may change; none lies in another one."""
    found = {*site_folders(), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    found |= {prefix for prefix in (sys.prefix, sys.base_prefix) if os.path.realpath(prefix) not in _SHARED}
    for folder in ("/usr/lib", "/usr/local/lib"):
        found |= {str(each) for each in Path(folder).glob("python3*")}
    places = sorted({Path(each).resolve() for each in found})
    whole = [place for place in places if place.is_dir() and not any(other in place.parents for other in places)]
    return tuple(str(place) for place in whole)


@functools.cache
def _pip_of_python() -> tuple[str, ...]:
    """Return the pip that comes with Python if the emulator's interpreter has none, as in environments made by uv."""
    if importlib.util.find_spec("pip") is not None:
        return ()
    import ensurepip

    folders = [
        Path(ensurepip.__file__).parent / "_bundled",
        Path(sysconfig.get_config_var("WHEEL_PKG_DIR") or "/nowhere"),
    ]
    return tuple(str(wheel) for folder in folders for wheel in sorted(folder.glob("pip-*.whl")))[:1]


@functools.cache
def _scripts() -> dict[str, str]:
    """Return the Python programs beside the emulator's interpreter: they find a job's own packages too."""
    folder, found = Path(sys.executable).parent, {}
    if os.path.realpath(folder) in ("/bin", "/usr/bin"):
        return {}
    for place in sorted(folder.iterdir()):
        try:
            with place.open("rb") as file:
                head = file.read(2) + file.readline() + file.readline()
        except OSError:
            continue
        if head.startswith(b"#!") and os.fsencode(folder / "python") in head and place.stat().st_size < _SCRIPT_BYTES:
            found[place.name] = shlex.quote(str(place))
    return found
