"""The source of each import of a program in a task, and the message when it has none, or another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import REPO, full_only

import sdk

pytestmark = pytest.mark.process

AUDITED = ("imports", "reads", "sets")
ISOLATED = {"isolated": True}


def findings(entry: str = "train.py", **code: object) -> list[tuple[str, str]]:
    """(level, sentence) of a plan's findings about imports and variables; its problems are errors."""
    try:
        return audited(sdk.plan(sdk.Job(entry, code=sdk.Code(**code))))
    except sdk.InputError as error:
        return [("error", problem) for problem in error.problems]


def audited(plan: sdk.Plan) -> list[tuple[str, str]]:
    found = [(each.level, each.message) for each in plan.findings]
    return [(level, message) for level, message in found if any(f" {word} " in message for word in AUDITED)]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Install a distribution that is not real: `install("acme-tools", "acme/__init__.py", requires=["acme-base"])`."""
    site = tmp_path / "fake" / "site-packages"
    site.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(site))

    def installer(name: str, *files: str, requires: tuple[str, ...] = (), version: str = "1.0", text: str = "") -> Path:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        for file in files:
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_text(text)
        info.mkdir()
        needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{info.name}/METADATA")))
        return site

    return installer


@pytest.fixture
def world(install, write) -> None:
    """A project and an environment in which everything that can be the case is the case."""
    needs = ("acme-base", "acme-extra; extra == 'x'", "never; os_name == 'none'")
    install("acme-tools", "acme/__init__.py", requires=needs)
    install("acme-base", "acmebase.py")
    install("acme-extra", "acmeextra.py")
    install("loose", "looser.py")
    install("corp-alpha", "corp/alpha/__init__.py")
    install("corp-beta", "corp/beta.py")
    install("tensorflow", "tensorflow/__init__.py", requires=("acme-image",), version="2.21.0")
    install("keras", "keras/__init__.py", version="3.12.4")
    install("tf-keras", "tf_keras/__init__.py", version="2.21.0")
    install("acme-image", "acmeimage.py")
    for file in ("helper.py", "pkg/__init__.py", "pkg/version.py", "left/__init__.py", "left/out.py", "wandb/run.log"):
        write(file)
    write(".gitignore", "left/\npkg/version.py\n")


SAYS_NOTHING = [
    ("import helper, pkg\nfrom pkg import name\n", "acme-tools", {}),
    ("import sdk\n", "acme-tools", {}),
    ("import acmebase\n", "acme-tools", {}),
    ("import acmeextra\n", "acme-tools[x]", {}),
    ("import tensorflow as tf\nimport keras, acmeimage\n", "acme-tools", {}),
    ("import tf_keras\n", "acme-tools", {"keras": "legacy"}),
    ("from corp import alpha, beta\nimport corp.beta\n", "corp-alpha\ncorp-beta", {}),
    ("import acme, looser\n", None, {}),
    ("import looser\n", "loose; python_version >= '3'", {}),
    ("import looser\n", "loose==1.0; python_version >= '3' and os_name != 'none'", {}),
    ("try:\n    import gone\nexcept ImportError:\n    pass\n", "acme-tools", {}),
    ("import acme, acmebase\n", "acme-tools", ISOLATED),
    ("import tensorflow, keras, numpy, tensorflow_estimator\n", "tensorflow==2.15", ISOLATED),
    (
        "import MySQLdb, google.cloud.nothing, cv2\n",
        "mysqlclient\ngoogle-cloud-nothing\nopencv-python-headless",
        ISOLATED,
    ),
]


@pytest.mark.parametrize(("text", "required", "code"), SAYS_NOTHING)
def test_an_import_that_is_accounted_for_says_nothing(world, write, text: str, required: str | None, code) -> None:
    if required is not None:
        write("requirements.txt", required)
    write("train.py", text)
    assert findings(**code) == []
    assert not {"acme", "corp", "tensorflow.acme"} & set(sys.modules), "nothing is imported"


SAYS = [
    ("import gone\n", None, "error", "imports 'gone': neither in the project nor installed here. Next: install it, or put"),
    ("import gone\n", "acme-tools", "error", "train.py:1 imports 'gone': in no bundle, no requirement of requirements.txt"),
    ("import os\nimport looser\n", "acme-tools", "warning", "train.py:2 imports 'looser': installed here, but in no bundle, "
     "and no requirement of requirements.txt brings it: it works here, and fails where only the requirements are installed. "
     "Next: add 'loose' to the requirements."),
    ("import looser\n", "loose; python_version < '3'", "warning", "no requirement of requirements.txt brings it"),
    ("import looser\n", "acme-tools\nnot-here", "warning", "the modules of not-here are unknown here"),
    ("import MySQLdb\n", "mysqlclient==2.2", "error", "in the requirements (mysqlclient, requirements.txt), but not installed "
     "here. Next: pip install mysqlclient, or code_isolated=True (--code-isolated)"),
    ("import google.cloud.nothing\n", "google-cloud-nothing", "error", "in the requirements (google-cloud-nothing"),
    ("from corp import alpha, gamma\n", None, "error", "imports 'corp.gamma': neither in the project nor installed here"),
    ("from corp import alpha\nimport corp.beta\n", "corp-alpha", "warning", "train.py:2 imports 'corp.beta'"),
    ("import left.out\n", None, "error", "it is 'left/out.py' of the project, which the bundle leaves out: left/ (in "),
    ("from pkg import version\n", None, "error", "Next: code_include=['pkg/version.py'] (--code-include)"),
    ("import wandb\n", "acme-tools", "warning", "imports 'wandb'"),
    ("def f():\n    import gone\n", None, "warning", "train.py:2 imports 'gone' when it is called: neither in the project nor"),
    ("def f():\n    import deeper\n", None, "warning", "deeper.py:1 imports 'gone' when it is called"),
    ("import looser\nimport user\n", "acme-tools", "warning", "train.py:1 imports 'looser' (and 1 more line like it)"),
]  # fmt: skip
SAYS_ISOLATED = [
    ("import looser\n", "acme-tools", "error", "the isolated environment will not contain it. Next: add 'loose'"),
    ("import looser\n", None, "error", "there are no requirements"),
    ("import gone\n", "acme-tools", "error", "no requirement of requirements.txt, not in the standard library"),
    ("import gone\n", "acme-tools\nnot-here", "warning", "the modules of not-here are unknown here"),
    ("import looser\n", "acme-tools==2", "warning", "the modules of acme-tools are unknown here"),
]


@pytest.mark.parametrize(
    ("text", "required", "level", "said", "code"),
    [*((*row, {}) for row in SAYS), *((*row, ISOLATED) for row in SAYS_ISOLATED)],
)
def test_an_import_that_is_not_accounted_for_says_why(world, install, write, text, required, level, said, code) -> None:
    if required is not None:
        write("requirements.txt", required)
    if "wandb" in text:
        install("wandb", "wandb/__init__.py")
    write("user.py", "import looser\n")
    write("deeper.py", "import gone\n")
    write("train.py", text)
    ((found_level, message),) = findings(**code)
    assert found_level == level
    assert said in message


def test_a_missing_tensorflow_is_installed_with_podlift(install, write, monkeypatch: pytest.MonkeyPatch) -> None:
    install("loose", "looser.py")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not Path(path, "keras").is_dir()])
    write("train.py", "import os\nimport keras\n")
    ((level, message),) = findings()
    assert level == "error"
    assert "train.py:2 imports 'keras': not installed here. Next: pip install 'podlift[tf]', or put" in message


def test_a_package_of_an_extra_of_the_project_is_a_note_with_the_setting_for_it(world, write) -> None:
    extras = "[project.optional-dependencies]\ntrain = ['loose']\n"
    write("pyproject.toml", f"[project]\nname = 'app'\ndependencies = []\n{extras}")
    write("train.py", "import looser\n")
    ((level, message),) = findings()
    assert level == "note"
    assert "code_requirements=['.[train]']" in message
    assert findings(requirements=(".[train]",)) == []
    ((level, message),) = findings(isolated=True)
    assert level == "error"


def test_a_lock_names_all_there_is(world, write) -> None:
    files = f"sdist = {{ url = 'https://host.example/acme_tools-1.0.tar.gz', hash = 'sha256:{'ab' * 32}' }}\n"
    source = f"version = '1.0'\nsource = {{ registry = 'https://pypi.org/simple' }}\n{files}"
    package = f"[[package]]\nname = 'acme-tools'\n{source}"
    write("pyproject.toml", "[project]\nname = 'app'\nversion = '0'\n")
    root = "version = 1\nrequires-python = '>=3.10'\n[[package]]\nname = 'app'\nsource = { virtual = '.' }\n"
    write("uv.lock", f"{root}dependencies = [{{ name = 'acme-tools' }}]\n{package}")
    write("train.py", "import acme, acmebase\n")
    ((level, message),) = findings()
    assert level == "warning", "a package that a lock leaves out is not installed, whatever is needed here"
    assert "imports 'acmebase': installed here, but in no bundle, and no requirement of uv.lock brings it" in message
    ((level, message),) = findings(isolated=True)
    assert level == "error"


def test_a_script_alone_says_how_to_package_the_files_beside_it(write) -> None:
    write("shared/helper.py")
    shared = write("shared/train.py", "import helper\n").parent
    shared.chmod(0o777)
    ((level, message),) = findings("shared/train.py")
    assert level == "error"
    assert f"code_project='{shared}'" in message


PLAN = """
import json, os, site, sys
sys.path[:] = [path for path in sys.path if path and path != os.getcwd()]
site.addsitedir(sys.argv[1])
sys.path.append(sys.argv[2])
import sdk
try:
    plan = sdk.plan(sdk.Job("train.py", code=sdk.Code(isolated=len(sys.argv) > 3)))
    print(json.dumps([(each.level, each.message) for each in plan.findings if " imports " in each.message]))
except sdk.InputError as error:
    print(json.dumps([["error", problem] for problem in error.problems]))
"""


def elsewhere(site: Path, *words: str, **environ: str) -> list[list[str]]:
    """The findings of a plan in a Python with these site-packages."""
    command = [sys.executable, "-c", PLAN, str(site), str(REPO), *words]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={**kept, **environ}).stdout
    return json.loads(said.splitlines()[-1])


FINDER = """
import importlib.machinery, importlib.util, sys
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "common":
            return importlib.util.spec_from_file_location(name, {0!r}, submodule_search_locations=[])
def install():
    sys.meta_path.append(Finder)
"""


@pytest.fixture
def monorepo(tmp_path: Path, install, write) -> Path:
    """A library beside the project, and an empty site-packages; returns the latter."""
    write("../libs/common/pyproject.toml", "[project]\nname = 'common'\n")
    write("../libs/common/src/common/__init__.py")
    write("../libs/single.py")
    write("train.py", "import os\nimport common\n")
    return install("numpy-like", "nl.py")


@pytest.mark.parametrize("how", ["pth", "finder"])
def test_a_module_from_outside_the_bundle_is_an_error_however_it_got_on_the_path(monorepo, tmp_path, how) -> None:
    source = tmp_path / "libs" / "common" / "src"
    if how == "pth":
        (monorepo / "__editable__.common-0.1.pth").write_text(f"{source}\n")
    else:
        (monorepo / "__editable___common_finder.py").write_text(FINDER.format(str(source / "common" / "__init__.py")))
        hook = "import __editable___common_finder; __editable___common_finder.install()"
        (monorepo / "__editable__.common.pth").write_text(hook)
    ((level, message),) = elsewhere(monorepo)
    assert level == "error"
    assert message.startswith(f"train.py:2 imports 'common': it loads from {str(source)!r}, outside the bundle. Next: ")
    assert "Next: code_include=['../libs/common']" in message


def test_an_isolated_run_takes_an_editable_requirement_from_its_index(monorepo, tmp_path, write) -> None:
    (monorepo / "common.pth").write_text(f"{tmp_path / 'libs' / 'common' / 'src'}\n")
    write("requirements.txt", "common==0.1\n")
    ((level, message),) = elsewhere(monorepo)
    assert level == "error"
    assert "or code_isolated=True (--code-isolated), which takes common from the requirements" in message
    assert elsewhere(monorepo, "isolated") == []


def test_a_module_that_loads_from_outside_is_found_by_its_package_or_alone(monorepo, tmp_path, write) -> None:
    write("../libs/common/src/common/sub/deep.py")
    write("../libs/spread/only/here.py")
    write("train.py", "import common.sub.deep\nfrom only import here\nimport single\n")
    path = ":".join(str(tmp_path / "libs" / name) for name in ("common/src", "spread", ""))
    found = [message for _, message in elsewhere(monorepo, PYTHONPATH=path)]
    for said, name, include in zip(
        found, ("common.sub.deep", "only.here", "single"), ("common", "spread/only", "single.py"), strict=True
    ):
        assert f"imports '{name}': it loads from" in said and f"code_include=['../libs/{include}']" in said


def test_a_program_that_arranges_its_path_itself_is_only_warned(monorepo, tmp_path, write) -> None:
    write("train.py", "import sys\nsys.path.insert(0, 'vendored')\nimport common\n")
    ((level, message),) = elsewhere(monorepo, PYTHONPATH=str(tmp_path / "libs" / "common" / "src"))
    assert level == "warning"
    assert "train.py changes where modules are loaded from" in message


def test_the_project_in_editable_mode_does_not_hide_files_that_its_bundle_lacks(monorepo, tmp_path, write) -> None:
    project = tmp_path / "project"
    (monorepo / "project.pth").write_text(f"{project / 'lib'}\n{project / 'src'}\n")
    write("lib/tools/__init__.py")
    write("src/made/__init__.py")
    write(".gitignore", "src/made\n")
    write("train.py", "import tools\n")
    ((level, message),) = elsewhere(monorepo)
    assert level == "error" and "the bundle has it as 'lib/tools/__init__.py', where a task does not look" in message
    write("train.py", "import made\n")
    ((level, message),) = elsewhere(monorepo)
    assert level == "error" and "code_include=['src/made/__init__.py']" in message


ENTRIES = [
    *(str(path.relative_to(REPO)) for folder in ("jobs", "examples") for path in sorted((REPO / folder).rglob("*.py"))),
    "points:batches",
]
# A folder with its own modules, a function.
IN_EVERY_RUN = {"jobs/char_lm/train.py", "points:batches"}


@pytest.mark.parametrize("entry", [entry if entry in IN_EVERY_RUN else full_only(entry) for entry in ENTRIES])
def test_jobs_and_examples_raise_no_false_alarm(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (find_spec("tensorflow") and find_spec("sklearn")):
        pytest.skip("not installed")
    monkeypatch.chdir(REPO / "examples" / "ci-project" if ":" in entry else REPO)
    args = {"count": 1, "seed": 1} if ":" in entry else None
    # Another program makes their data.
    inputs = dict.fromkeys(("train", "test"), __file__) if entry.startswith("examples/retrain/") else {}
    plan = sdk.plan(sdk.Job(entry, args=args, inputs=inputs))
    assert [message for level, message in audited(plan) if level != "note"] == []
