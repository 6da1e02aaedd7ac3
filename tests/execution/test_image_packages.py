"""An image that has all requirements is known without pip."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sdk.execution.entrypoint import has_all

# Distributions of the image: name, version and requirements.
IMAGE = {
    ("plain", "1.5"): (),
    ("early", "2.0rc1"): (),
    ("Deep.Name", "3.0"): ("plain>=1", 'nowhere; python_version < "3"'),
    ("with-extras", "1.0"): ("plain", 'nowhere; extra == "more"', 'early; extra == "less"'),
    ("one", "1.0"): ("other",),
    ("other", "1.0"): ("one",),
    ("broken", "1.0"): ("plain>=2",),
    ("unclear", "1.0"): ("plain @ file:///nowhere/plain-1.5.tar.gz",),
    ("unread", "not a version"): (),
}
CASES: dict[str, tuple[list[str], list[str], bool]] = {
    "nothing is required": ([], [], True),
    "a version that fits": (["plain>=1,<2"], [], True),
    "a version that does not fit": (["plain>=2"], [], False),
    "a name that is spelt in another way": (["deep_name"], [], True),
    "something that the image lacks": (["plain", "nowhere"], [], False),
    "a marker that does not hold": (['nowhere; python_version < "3"'], [], True),
    "a version before its release, which the image has": (["early>=1"], [], True),
    "an extra that is there": (["with-extras[less]"], [], True),
    "an extra that is not": (["with-extras[more]"], [], False),
    "an extra that is asked for later": (["with-extras", "with-extras[more]"], [], False),
    "two that require each other": (["one"], [], True),
    "one whose requirement does not fit": (["broken"], [], False),
    "a limit that fits": (["deep-name"], ["plain<2"], True),
    "a limit of a requirement's requirement": (["deep-name"], ["plain<1.5"], False),
    "a limit of something else": (["plain"], ["nowhere<2"], True),
    "a limit whose marker does not hold": (["plain"], ['plain<1; python_version < "3"'], True),
}
ONLY_PIP_KNOWS = {
    "a hash, of a package that is there": (["plain==1.5 --hash=sha256:" + "0" * 64], [], True),
    "an address": (["plain @ file:///nowhere/plain-1.5.tar.gz"], [], False),
    "a requirement with an address": (["unclear"], [], False),
    "a limit with an address": (["plain"], ["plain @ file:///nowhere/plain-1.5.tar.gz"], False),
    "a version that is none": (["unread>=1"], [], False),
    "a line that is no requirement": (["plain == == 1"], [], False),
}


@pytest.fixture
def image(tmp_path: Path) -> Path:
    for (name, version), requires in IMAGE.items():
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Provides-Extra: more"]
        lines += ["Provides-Extra: less", *(f"Requires-Dist: {each}" for each in requires)]
        (info / "METADATA").write_text("\n".join([*lines, "", ""]))
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_text("")
    return tmp_path


@pytest.mark.parametrize("name", [*CASES, *ONLY_PIP_KNOWS])
def test_whether_an_image_has_all_that_is_required(image: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.syspath_prepend(image)
    lines, limits, known = (CASES | ONLY_PIP_KNOWS)[name]
    assert has_all(lines, limits) is known


@pytest.mark.full
@pytest.mark.process
@pytest.mark.parametrize("name", CASES)
def test_pip_would_install_something_exactly_where_the_image_lacks_it(image: Path, tmp_path: Path, name: str) -> None:
    lines, limits, known = CASES[name]
    for broken in image.glob("unread-*"):
        broken.rename(image / "unread")
    (tmp_path / "requirements.txt").write_text("\n".join([*lines, ""]))
    (tmp_path / "constraints.txt").write_text("\n".join([*limits, ""]))
    words = "-m pip install --quiet --no-index --dry-run --report report.json -r requirements.txt -c constraints.txt"
    command, env = [sys.executable, *words.split()], {"PYTHONPATH": str(image)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    found = done.returncode == 0 and not json.loads((tmp_path / "report.json").read_bytes())["install"]
    assert found is known, done.stderr.decode()
