"""Requirements against installed packages: a replacement is refused, a difference is named."""

from __future__ import annotations

import pytest
from reading import read

from sdk.packaging.requirements.read import Requirements, differences, pins

BROUGHT = {"tensorflow": "2.21.0", "keras": "3.12.4", "numpy": "2.2.6", "protobuf": "6.31.1", "pandas": "2.0"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tensorflow==2.15.0", "accept the installed version too (tensorflow>=2.15.0)"),
        ("tensorflow>=2.22", "replace tensorflow 2.21.0"),
        ("TensorFlow[and-cuda]<2.21", "accept the installed version too (tensorflow)"),
        ("tensorflow-cpu", "Both are the module 'tensorflow'"),
        ("keras==2.*", "keras>=2"),
        ("numpy<2", "replace numpy 2.2.6"),
        ("numpy<2; python_version >= '3'", "replace numpy 2.2.6"),
        ("numpy @ https://host.example/numpy-2.2.6-py3-none-any.whl", "numpy from a URL"),
        ("-c limits.txt", "replace numpy"),
    ],
)
def test_a_pin_that_would_replace_a_package_of_an_image_is_refused_with_the_fix(write, line: str, said: str) -> None:
    write("limits.txt", "numpy<2\n")
    (finding,) = pins(read((line,)), BROUGHT)
    assert finding.level == "error"
    assert said in finding.message
    assert "--code-isolated" in finding.message
    assert "code_requirements='none'" in finding.message
    assert pins(read((line,)), {"pandas": "1.0"}) == [], "nothing is there to replace"


@pytest.mark.parametrize(
    "line", ["tensorflow>=2.16,<2.22", "numpy~=2.0", "pandas==1.0", "numpy<2; python_version < '3'", "tf-keras==2.0"]
)
def test_a_requirement_satisfied_by_the_installed_version_is_no_pin(write, line: str) -> None:
    assert pins(read((line,)), BROUGHT) == []


@pytest.mark.process
def test_a_lock_is_asked_to_lock_the_installed_versions(write) -> None:
    files = f"sdist = {{ url = 'https://host.example/numpy-1.26.4.tar.gz', hash = 'sha256:{'ab' * 32}' }}\n"
    write("pyproject.toml", "[project]\nname = 'app'\nversion = '0'\ndependencies = ['numpy']\n")
    write("uv.lock", "version = 1\nrequires-python = '>=3.10'\n[[package]]\nname = 'app'\nsource = { virtual = '.' }\n"
          "dependencies = [{ name = 'numpy' }]\n[[package]]\nname = 'numpy'\nversion = '1.26.4'\n"
          "source = { registry = 'https://pypi.org/simple' }\n" + files)  # fmt: skip
    (finding,) = pins(read(), BROUGHT)
    assert "uv add 'numpy==2.2.6'" in finding.message


def test_local_tasks_are_told_where_the_environment_differs(write) -> None:
    here = {"numpy": "2.2.6", "scipy": "1.15.0", "x": "1.0"}
    lines = ("numpy>=2", "scipy==1.14", "pandas", "x @ https://host.example/x", "y; os_name == 'none'", "z[more]>=1")
    (finding,) = differences(read(lines), here)
    assert finding.level == "warning"
    assert "pandas is not installed, z is not installed, scipy is 1.15.0, not ==1.14" in finding.message
    assert "pip install" in finding.message
    assert "--code-isolated" in finding.message
    assert differences(read(("numpy",)), here) == []
    assert differences(Requirements(), here) == []
    write("requirements.txt", "".join(f"missing{number}\n" for number in range(30)))
    (finding,) = differences(read(), here)
    assert "and 20 more" in finding.message
    assert "pip install -r requirements.txt" in finding.message
