"""The first lines that run in a task, by path, with nothing but the standard library: makes `sdk` importable, hands over.

Usage: `python first_stage.py PAYLOAD TASK`
"""

import sys
from pathlib import Path


def main() -> None:
    """Put the folder that holds `sdk` on the path instead of this file's own, whose module names are not for users."""
    # As it was named, links and all: one may lead from a folder that holds nothing but podlift.
    home = str(Path(__file__).absolute().parent.parent.parent)
    here = Path(__file__).resolve().parent
    sys.path[:] = [home, *(path for path in sys.path if Path(path).resolve() != here)]
    from sdk.runtime import bootstrap

    # An installed `sdk` is found without this entry; user code must not find the folder's other contents through it.
    sys.path.remove(home)
    sys.exit(bootstrap.main(sys.argv[1], sys.argv[2], home))


if __name__ == "__main__":
    main()
