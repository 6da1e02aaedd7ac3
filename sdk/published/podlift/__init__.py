"""podlift: this name of the package. The files are in the folder `sdk`: see docs/explanation/decisions/import-name.md."""

import os
from importlib.machinery import SourceFileLoader
from types import ModuleType

_here = os.path.dirname(os.path.realpath(__file__))
_above = os.path.dirname(_here)
# In a checkout the folder is around this file; where podlift is installed, and in a task, beside it.
_folder = next(
    place
    for place in (os.path.dirname(_above), os.path.join(_above, "sdk"))
    if os.path.isfile(os.path.join(place, "runtime", "task_main.py"))
)
_names = ModuleType("podlift_names")
SourceFileLoader(_names.__name__, os.path.join(_folder, "names.py")).exec_module(_names)
_names.load(_folder)
