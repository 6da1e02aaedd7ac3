"""The repository's statements about itself, checked."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sources import SOURCES, nodes_of, tree_of
from support import REPO

import sdk

pytestmark = pytest.mark.xdist_group("imports")

HEAVY = (
    "tensorflow",
    "keras",
    "grpc",
    "google.cloud",
    "google.auth",
    "google.api_core",
    "pydantic",
    "typer",
    "rich",
    "numpy",
)


def room(path: Path) -> str:
    """The part of the package that a file belongs to."""
    return path.relative_to(REPO / "sdk").parts[0].removesuffix(".py")


def imports_of(path: Path, top_level_only: bool = False) -> set[str]:
    """Dotted names that a file imports; relative ones as `sdk...`."""
    package = ["sdk", *path.relative_to(REPO / "sdk").parts[:-1]]
    found = set()
    for node in tree_of(path).body if top_level_only else nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{name}.{alias.name}" for alias in node.names} | {name}
    return found


def test_only_modules_of_a_task_import_tensorflow_and_hardly_at_the_top() -> None:
    frameworks = ("tensorflow", "keras", "tf_keras")
    users = {path for path in SOURCES if any(name.split(".")[0] in frameworks for name in imports_of(path))}
    assert {room(path) for path in users} <= {"runtime", "checkpoint", "preflight"}
    at_the_top = {p for p in users if any(n.split(".")[0] in frameworks for n in imports_of(p, top_level_only=True))}
    # The stand-ins are made of TensorFlow's own classes, and loaded when TensorFlow is.
    stand_ins = ("gpu/devices.py", "gpu/install.py", "tpu/devices.py", "tpu/install.py", "tpu/replicas.py")
    at_the_top -= {REPO / "sdk" / "runtime" / name for name in stand_ins}
    # A preflight's child loads these two once the program has imported TensorFlow.
    at_the_top -= {REPO / "sdk" / "preflight" / name for name in ("capture.py", "steps.py")}
    assert {path.stem for path in at_the_top} <= {path.stem for path in (REPO / "sdk" / "checkpoint" / "tf").iterdir()}


def test_the_package_stays_within_its_budget_of_lines() -> None:
    budget = int((REPO / "tests" / "repo" / "budget.txt").read_text().split()[0].replace(",", ""))
    lines = sum(path.read_text().count("\n") for path in SOURCES)
    assert lines <= budget, f"sdk/ has {lines:,} lines of {budget:,}. `scripts/size` shows where they are."


def test_functions_fit_on_a_screen() -> None:
    long = {}
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
                start = node.body[0].end_lineno if ast.get_docstring(node) else node.lineno
                if node.end_lineno - (start or node.lineno) > 50:
                    long[f"{path.name}:{node.name}"] = node.end_lineno - (start or node.lineno)
    assert long == {}


def test_names_of_tests_have_at_most_80_characters() -> None:
    texts = [path.read_text() for path in (REPO / "tests").rglob("*.py")]
    names = [name for text in texts for name in re.findall(r"def (test_\w+)", text)]
    assert names and [name for name in names if len(name) > 80] == []


@pytest.mark.process
def test_import_sdk_loads_nothing_heavy() -> None:
    # Some distributions of Google register their namespace packages in every Python that starts: that is not ours.
    code = (
        "import sys; bare = set(sys.modules); import sdk; "
        f"print([m for m in set(sys.modules) - bare if m.startswith({HEAVY!r})])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPO).stdout
    assert shown.strip() == "[]"


@pytest.mark.process
def test_planning_a_run_loads_no_framework_and_no_cloud_client(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow")
    heavy = (*HEAVY[:6], "jinja2")
    code = (
        "import sys; bare = set(sys.modules); import sdk; sdk.plan('train.py', workers=2); "
        f"print([m for m in set(sys.modules) - bare if m.startswith({heavy!r})])"
    )
    env = {"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=env).stdout
    assert shown.strip() == "[]"


@pytest.mark.process
def test_modules_of_a_training_image_need_only_the_standard_library() -> None:
    parts = ["runtime", "runtime.patches", "runtime.hooks"]
    folders = {part: REPO / "sdk" / part.replace(".", "/") for part in parts}
    modules = [f"sdk.{part}.{m.name}" for part, folder in folders.items() for m in pkgutil.iter_modules([str(folder)])]
    code = f"import sys; sys.path.insert(0, {str(REPO)!r}); import importlib; [importlib.import_module(m) for m in {modules!r}]"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, capture_output=True)


@pytest.mark.process
def test_checkpoints_are_kept_without_tensorflow() -> None:
    names = [m.name for m in pkgutil.iter_modules([str(REPO / "sdk" / "checkpoint")])]
    modules = [f"sdk.checkpoint.{name}" for name in names if name != "tf"]
    code = (
        f"import sys; sys.path.insert(0, {str(REPO)!r}); import importlib; [importlib.import_module(m) for m in {modules!r}]; "
        "print([m for m in sys.modules if m.split('.')[0] in ('tensorflow', 'keras', 'numpy', 'pydantic')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"


def test_public_names_work_twice() -> None:
    for _ in range(2):
        for name in sdk.__all__:
            assert getattr(sdk, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        sdk.nonsense  # noqa: B018


def test_public_names_have_a_docstring_and_are_in_the_reference() -> None:
    reference = (REPO / "docs" / "reference" / "api.md").read_text()
    for name in sdk.__all__:
        assert getattr(sdk, name).__doc__, name
        assert f"`{name}" in reference, name


@pytest.mark.process
def test_the_reference_is_made_from_the_docstrings_as_they_are() -> None:
    subprocess.run([sys.executable, str(REPO / "scripts" / "reference"), "--check"], check=True)


def test_the_package_and_its_metadata_have_one_version() -> None:
    assert f'version = "{sdk.__version__}"' in (REPO / "pyproject.toml").read_text()


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, cwd=REPO).stdout.split(
        "\n"
    )
    return [REPO / name for name in listed if name and (REPO / name).is_file()]


@pytest.mark.process
def test_links_of_the_documents_lead_somewhere() -> None:
    broken = []
    for path in (p for p in tracked() if p.suffix == ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.name}: {target}")
    assert broken == []


def test_the_readme_has_one_picture_and_the_commands_on_its_first_screen() -> None:
    lines = (REPO / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    screen = "\n".join(lines[:18])
    (image,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", screen)
    assert (REPO / image).stat().st_size < 100_000
    assert screen.count("pip install") == 1 and screen.count("podlift submit") == 2
    assert "docs/explanation/benchmarks.md#" in screen
    assert "checked by Google's own clients; the real cloud was not tried." in screen
    assert "scripts/quickstart" in "\n".join(lines[:40]) and "sdk.submit(" in "\n".join(lines[:44])


def test_every_example_is_short_and_run_by_a_test() -> None:
    runner = (REPO / "tests" / "e2e" / "test_examples.py").read_text()
    for path in (REPO / "examples").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 60, path.name
        assert path.name in runner, path.name


# Inside of a run's directory, which its owner alone may write to; or a folder of `mkdtemp` that is removed itself.
REMOVES_BY_PATH = {
    "backends/local/host.py",
    "backends/folder.py",
    "planning/remote.py",
    "records/outputs.py",
    "records/sync/index.py",
    "execution/entrypoint.py",
}


_COPIES_IN_MEMORY = {"checkpoint/recent.py", "process/janitor.py", "execution/container.py"}


def test_folders_outside_of_runs_are_removed_by_one_function() -> None:
    found = {str(path.relative_to(REPO / "sdk")) for path in SOURCES if "rmtree(" in path.read_text()}
    assert found <= REMOVES_BY_PATH | _COPIES_IN_MEMORY


def test_class_variables_name_their_type_or_python_310_cannot_read_the_fields() -> None:
    bare = [
        f"{path.relative_to(REPO)}: {line.strip()}"
        for folder in ("sdk", "tests", "docs", "examples")
        for path in (REPO / folder).rglob("*")
        if path.suffix in (".py", ".md")
        for line in path.read_text().splitlines()
        if re.search(r": ClassVar\s=", line)
    ]
    assert bare == []
