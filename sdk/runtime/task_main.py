"""The first code of a task. It is run by path, needs only the standard library, loads podlift and hands over.

Usage: `python task_main.py PAYLOAD TASK [MODULE [ARGUMENT]]`, with a module of this folder that is not `bootstrap`
"""

import gc
import importlib
import json
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType


def main() -> None:
    """Load podlift from this file's location, without leaving it on sys.path, which is the program's."""
    # Not resolved: a link may lead here from a folder that holds nothing but podlift.
    package = Path(__file__).absolute().parent.parent
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != here]
    names = ModuleType("podlift_names")
    SourceFileLoader(names.__name__, str(package / "names.py")).exec_module(names)
    real = names.real_name(json.loads(Path(sys.argv[1]).read_bytes()).get("own_names", []))
    names.load(str(package), real)
    # Imports leave little garbage, and looking for it takes a tenth of their time.
    gc.disable()
    payload, task, module, *rest = [*sys.argv[1:], "bootstrap"] if len(sys.argv) == 3 else sys.argv[1:]
    loaded = importlib.import_module(f"{real}.runtime.{module}")
    gc.enable()
    sys.exit(loaded.main(payload, task, str(package.parent), *rest))


if __name__ == "__main__":
    main()
