"""The first code of a task. It is run by path, needs only the standard library, loads podlift and hands over.

Usage: `python task_main.py PAYLOAD TASK [MODULE [ARGUMENT]]`, with a module of this folder that is not `bootstrap`
"""

import gc
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

# Not resolved: a link may lead here from a folder that holds nothing but podlift.
_PACKAGE = Path(__file__).absolute().parent.parent


def load() -> None:
    """Import podlift's package from this file's location, without leaving it on sys.path, which is the program's."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != here]
    # A process that was forked has it.
    if "sdk" not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location("sdk", _PACKAGE / "__init__.py")
        sys.modules["sdk"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["sdk"])


def main() -> None:
    """Hand over to the module that the command line names."""
    load()
    # Imports leave little garbage, and looking for it takes a tenth of their time.
    gc.disable()
    payload, task, module, *rest = [*sys.argv[1:], "bootstrap"] if len(sys.argv) == 3 else sys.argv[1:]
    loaded = importlib.import_module(f"sdk.runtime.{module}")
    gc.enable()
    sys.exit(loaded.main(payload, task, str(_PACKAGE.parent), *rest))


if __name__ == "__main__":
    main()
