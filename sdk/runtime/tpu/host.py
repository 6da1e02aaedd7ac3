"""A machine that has a TPU: sets the variables that TensorFlow reads at its import, and waits until the TPU is present.

Sources of the facts: docs/reference/tpu-stand-in.md. No TensorFlow here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

from ...clock import Clock
from ...hardware import Accelerator
from ...logs import logger

_log = logger("runtime")

_LIBRARY = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
_XLA_FLAGS = "TF_XLA_FLAGS"
_CACHE_FLAG = "--tf_xla_persistent_cache_directory"
# Device files of chips: accelerators of the kernel, or passed through to the machine.
_CHIPS = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
WAIT_S = 300.0
_POLL_S = 1.0


def set_variables(row: Accelerator, environ: MutableMapping[str, str], run: str) -> None:
    """Set the variables that TensorFlow reads at its import, unless the job sets them.

    Compiled programs are cached in the run's directory `run`, for the next attempt.
    """
    for name, value in row.env:
        environ.setdefault(name, value)
    library = environ.get(_LIBRARY)
    if library and not Path(library).exists():
        libtpu = _libtpu()
        if libtpu is None:
            _log.info(
                f"{library} does not exist, and the package libtpu is not installed: TensorFlow will find no TPU. Next: use an "
                "image that has both tensorflow-tpu and libtpu"
            )
        else:
            _log.info(f"{_LIBRARY} is set to {libtpu}: {library} does not exist in this image")
            environ[_LIBRARY] = libtpu
    if _CACHE_FLAG not in environ.get(_XLA_FLAGS, ""):
        cache = f"{run.rstrip('/')}/xla"
        if "://" not in cache:
            Path(cache).mkdir(parents=True, exist_ok=True)  # XLA caches nothing if the folder is missing
        environ[_XLA_FLAGS] = f"{environ.get(_XLA_FLAGS, '')} {_CACHE_FLAG}={cache}".strip()


def _libtpu() -> str | None:
    spec = importlib.util.find_spec("libtpu")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    paths = [Path(folder, "libtpu.so") for folder in folders]
    return next((str(path) for path in paths if path.exists()), None)


def chips() -> list[str]:
    return sorted(str(path) for pattern in _CHIPS for path in Path("/dev").glob(pattern.removeprefix("/dev/")))


def wait(clock: Clock, present: Callable[[], Sequence[str]] = chips) -> bool:
    """Wait at most `WAIT_S` seconds until the machine has a chip; return whether it has.

    TensorFlow searches for devices once per process, so a program that starts too early never finds them.
    """
    until, logged = clock.monotonic() + WAIT_S, False
    while not present():
        if clock.monotonic() >= until:
            _log.info(
                f"no TPU appeared within {WAIT_S:g} s. Expected: {' or '.join(_CHIPS)}. The program starts anyway, and "
                "fails at initialize_tpu_system() if TensorFlow finds none either"
            )
            return False
        if not logged:
            logged = True
            _log.info(f"waiting for the TPU, at most {WAIT_S:g} s")
        clock.sleep(_POLL_S)
    return True
