"""Real projects, in fresh environments that hold the built wheel: they go through `podlift submit` and come back."""

from __future__ import annotations

import json
import sysconfig
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

UV = f"{sysconfig.get_path('scripts')}/uv"

SRC_LAYOUT = {
    "pyproject.toml": """
        [project]
        name = "digits"
        version = "1.0"
        dependencies = ["numpy"]
        """,
    "uv.lock": f"""
        version = 1
        requires-python = ">=3.10"

        [[package]]
        name = "digits"
        version = "1.0"
        source = {{ editable = "." }}
        dependencies = [{{ name = "numpy" }}]

        [[package]]
        name = "numpy"
        version = "{version("numpy")}"
        source = {{ registry = "https://pypi.org/simple" }}
        sdist = {{ url = "https://host.example/numpy-{version("numpy")}.tar.gz", hash = "sha256:{"ab" * 32}" }}
        """,
    "data/digits.csv": "0,0,1\n0,1,0\n1,0,0\n1,1,1\n",
    "src/digits/__init__.py": "",
    "src/digits/reading.py": """
        from pathlib import Path
        import numpy as np

        def table():
            rows = np.loadtxt(Path("data/digits.csv"), delimiter=",")
            return rows[:, :2], rows[:, 2:]
        """,
    "src/digits/train.py": """
        import numpy as np
        import sdk
        from digits.reading import table

        def main(epochs):
            x, y = table()
            weights = np.zeros((2, 1))
            for _ in range(epochs):
                weights -= 0.1 * x.T @ (x @ weights - y)
            np.save(f"{sdk.context().dirs.model}/model.npy", weights)
            open("notes.txt", "w").write(__file__)
            return len(x)
        """,
}


@pytest.mark.full
def test_a_src_layout_project_with_a_lock_and_data_comes_back_with_its_model(write, fresh, tmp_path: Path) -> None:
    for path, text in SRC_LAYOUT.items():
        project = write(path, text).parents[len(Path(path).parts) - 1]
    # As `pip install -e .` leaves it: the project's own folder is on the path of everything that runs here.
    (fresh.site / "__editable__.digits.pth").write_text(f"{project / 'src'}\n")
    shown = fresh.podlift("submit", "-v", "digits.train:main", "--args", '{"epochs": 2}', "--json", cwd=project, UV=UV)
    assert shown.code == 0, shown.stderr
    assert "1 of uv.lock: numpy==" in shown.stderr
    run = json.loads(shown.stdout)
    got = fresh.podlift("get", run["id"], str(tmp_path / "got"), cwd=project)
    assert got.code == 0, got.stderr
    assert np.load(tmp_path / "got" / "model" / "model.npy").all(), "no weight is 0 any more"
    loaded_from = (tmp_path / "got" / "work" / "notes.txt").read_text()
    assert Path(loaded_from).is_relative_to(run["url"]), "not from the folder that is installed in editable mode"


def test_the_package_the_command_and_the_plugin_are_installed_by_their_names(write, fresh) -> None:
    assert (fresh.site / "sdk" / "py.typed").is_file() and not (fresh.site / "podlift").exists()
    write("test_it.py", "import sys, sdk.errors\ndef test_names(podlift_run): assert 'podlift' not in sys.modules\n")
    project = write("train.py", "import sdk\nprint(sdk.context().task)").parent
    tested = fresh.python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    assert tested.code == 0, tested.stdout
    for start in (fresh.podlift, partial(fresh.python, "-m", "sdk")):
        shown = start("submit", "train.py", "--json", cwd=project)
        assert shown.code == 0, shown.stderr
        logs = fresh.podlift("logs", json.loads(shown.stdout)["id"], cwd=project)
        assert logs.stdout == "chief-0\n"
    refused = fresh.python("-c", "import podlift", cwd=project)
    assert refused.stderr.endswith("ModuleNotFoundError: No module named 'podlift'\n")
