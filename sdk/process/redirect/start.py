"""Redirects TensorFlow's own requests to gs:// to the emulator, for the tasks of a run, if an emulator is configured."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ...errors import InputError
from ...storage import emulator

# By name: a training in a cloud has no emulator, and podlift works without its packages.
_REDIRECT = ".proxy"


def start(environ: Mapping[str, str], temporary: str) -> dict[str, str]:
    """Return the variables that tasks need to reach the emulator; {} where none is configured.

    It is served by threads of this process, until the process ends. `environ` is this process's, `temporary` a folder.

    Raises:
        InputError: an emulator is configured, and its packages are missing or its address is malformed.
    """
    url = emulator.address(environ)
    if not url or _is_redirected(environ, url):
        return {}
    try:
        redirect: Any = importlib.import_module(_REDIRECT, __package__).Redirect
    except ImportError as error:
        raise InputError(
            f"{emulator.EMULATOR} is set, but the packages that tasks need for it are not installed ({error}). Next: pip "
            f"install 'podlift[emulator]', or unset {emulator.EMULATOR}."
        ) from error
    running = redirect(url, Path(temporary) / "redirect", environ)
    running.start()
    return {name: value for name, value in running.environment.items() if environ.get(name) != value}


def _is_redirected(environ: Mapping[str, str], url: str) -> bool:
    """True in a replica of an emulated job: the emulator has already redirected it."""
    proxy = urlsplit(environ.get("https_proxy", ""))
    return proxy.password is not None and proxy.password == urlsplit(url).path.strip("/")
