"""A machine that has a TPU: what TensorFlow needs there before it is imported, and patience until the TPU is there.

Where the facts come from: docs/how-to/tpu.md. No TensorFlow here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path

from ...clock import Clock
from ...hardware import Accelerator

_LIBRARY = "TF_PLUGGABLE_DEVICE_LIBRARY_PATH"
_XLA_FLAGS = "TF_XLA_FLAGS"
_CACHE_FLAG = "--tf_xla_persistent_cache_directory"
# How chips appear in a machine: as accelerators of the kernel, or passed through to it.
_CHIPS = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
WAIT_S = 300.0
_POLL_S = 1.0


def prepare(
    row: Accelerator, environ: MutableMapping[str, str], run: str, clock: Clock, log: Callable[[str], None]
) -> None:
    """Make this process ready for the TPU of its machine; TensorFlow is not imported yet."""
    set_variables(row, environ, run, log)
    wait(clock, log)


def set_variables(row: Accelerator, environ: MutableMapping[str, str], run: str, log: Callable[[str], None]) -> None:
    """Set what TensorFlow reads at its import; what the job has set itself stays.

    Args:
        row: the TPU.
        environ: the variables.
        run: the run's directory: the compiled programs are kept there, for the next attempt.
        log: takes a line about what is unusual.
    """
    for name, value in row.env:
        environ.setdefault(name, value)
    library = environ.get(_LIBRARY)
    if library and not Path(library).exists():
        found = _libtpu()
        if found is None:
            log(
                f"there is no {library}, and the package libtpu is not installed: TensorFlow will find no TPU. Next: an image "
                "that has both tensorflow-tpu and libtpu"
            )
        else:
            log(f"{_LIBRARY} is {found}: there is no {library} in this image")
            environ[_LIBRARY] = found
    if _CACHE_FLAG not in environ.get(_XLA_FLAGS, ""):
        cache = f"{run.rstrip('/')}/xla"
        if "://" not in cache:
            Path(cache).mkdir(parents=True, exist_ok=True)  # XLA keeps nothing where there is no folder
        environ[_XLA_FLAGS] = f"{environ.get(_XLA_FLAGS, '')} {_CACHE_FLAG}={cache}".strip()


def _libtpu() -> str | None:
    found = importlib.util.find_spec("libtpu")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    places = [Path(folder, "libtpu.so") for folder in folders]
    return next((str(place) for place in places if place.exists()), None)


def chips() -> list[str]:
    """Return the device files of the chips of this machine."""
    return sorted(str(path) for pattern in _CHIPS for path in Path("/dev").glob(pattern.removeprefix("/dev/")))


def wait(clock: Clock, log: Callable[[str], None], present: Callable[[], Sequence[str]] = chips) -> bool:
    """Wait until the machine shows a chip, `WAIT_S` seconds at most; return whether it does.

    TensorFlow looks for devices once in the life of a process, so a program that starts too early never finds them.
    """
    until, said = clock.monotonic() + WAIT_S, False
    while not present():
        if clock.monotonic() >= until:
            log(
                f"no TPU has appeared within {WAIT_S:g} s: looked for {' and '.join(_CHIPS)}. The program starts all the "
                "same, and fails at initialize_tpu_system() if TensorFlow sees none either"
            )
            return False
        if not said:
            said = True
            log(f"waiting for the TPU, {WAIT_S:g} s at most")
        clock.sleep(_POLL_S)
    return True
