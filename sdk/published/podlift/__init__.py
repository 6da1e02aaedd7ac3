"""podlift: this name of the package. The files are in the folder `sdk`: see docs/explanation/decisions/import-name.md."""

from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

_here = Path(__file__).resolve().parent
# In a checkout the folder is around this file; where podlift is installed, and in a task, beside it.
_folder = next(
    place for place in (_here.parent.parent, _here.parent / "sdk") if (place / "runtime" / "task_main.py").is_file()
)
_names = ModuleType("podlift_names")
SourceFileLoader(_names.__name__, str(_folder / "names.py")).exec_module(_names)
_names.load(str(_folder))
