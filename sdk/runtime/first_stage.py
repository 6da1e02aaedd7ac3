"""The first lines that run in a task, by path, with nothing but the standard library: makes `sdk` importable, hands over.

Usage: `python first_stage.py PAYLOAD TASK`
"""

import sys
from pathlib import Path


def main() -> None:
    """Put the folder that holds `sdk` on the path instead of this file's own, whose module names are not for users."""
    home = str(Path(__file__).resolve().parent.parent.parent)
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [home, *(path for path in sys.path if path != here)]
    from sdk.runtime import bootstrap

    # An installed `sdk` is found without this entry; user code must not find the folder's other contents through it.
    sys.path.remove(home)
    sys.exit(bootstrap.main(sys.argv[1], sys.argv[2], home))


if __name__ == "__main__":
    main()
