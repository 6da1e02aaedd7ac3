"""The check-up, as a process in environments that are not well: one line for each thing, one fix for each failure."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import LIMIT_S, REPO, Shown
from test_remove import POWERLESS, as_somebody

from sdk.backends.vertex.services import VertexServices
from sdk.checks.check import Check, Row, fine
from sdk.cli import app
from sdk.cli.doctor import answers
from sdk.clock import SystemClock
from sdk.storage.file_systems import Mount, holding, inside, parse
from sdk.upkeep.doctor import interpreter, machine, root

pytestmark = pytest.mark.process


class Answer(Shown):
    @property
    def lines(self) -> list[str]:
        """One line for each check, with the next step."""
        return [" ".join(each.split()) for each in re.split(r"\n(?! )", self.stdout.strip())]

    def line(self, *words: str) -> str:
        """The only line that begins with these words."""
        (found,) = [line for line in self.lines if tuple(line.split()[: len(words)]) == words]
        return found


def doctor(*words: str, python: str | Path = sys.executable, before: tuple[str, ...] = (), **variables: str) -> Answer:
    # The machine that tests may run behind a proxy, and has its own idea of Keras.
    own = {name: text for name, text in os.environ.items() if not re.search("proxy|keras", name, re.IGNORECASE)}
    command = [*before, str(python), "-m", "sdk", "doctor", *words]
    env = {**own, "PYTHONPATH": str(REPO), **variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert "Traceback" not in done.stderr
    return Answer(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has all that podlift needs and nothing that a training program imports; return its site-packages."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, symlinks=True, with_pip=False)
    site = next(home.glob("lib/python*/site-packages"))
    frameworks = ("tensorflow", "keras", "tf_keras", "numpy")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith(frameworks):
            (site / entry.name).symlink_to(entry)
    return site


@contextmanager
def extended(site: Path, **modules: str | None) -> Iterator[Path]:
    """Add modules to a Python for a while, and yield its program; None is a folder without anything in it."""
    for name, text in modules.items():
        (site / name).mkdir()
        if text is not None:
            (site / name / "__init__.py").write_text(text)
    try:
        yield site.parents[2] / "bin" / "python"
    finally:
        for name in modules:
            shutil.rmtree(site / name)


TENSORFLOW = "__version__ = '2.19.0'\nones = lambda shape: 1\nreduce_sum = lambda ones: 4.0\n"
KERAS = "class backend:\n    backend = lambda: 'tensorflow'\n__version__ = '3.9.0'\n"
NUMPY = "__version__ = '2.0.0'\n"


@pytest.mark.full
@pytest.mark.tensorflow
def test_a_working_machine_fails_no_check_of_the_doctor_and_keeps_no_file_of_it(tmp_path: Path) -> None:
    shown = doctor(HOME=str(tmp_path))
    assert shown.code == 0, shown.stdout
    assert shown.stderr.startswith("Nothing failed, ")
    for name in ("python", "settings", "root", "fork", "ports", "localhost", "numpy", "tensorflow", "keras"):
        assert shown.line("ok", name)
    assert shown.line("ok", "tensorflow").endswith(" computes")
    assert shown.line("ok", "keras").endswith(" on tensorflow")
    assert list(tmp_path.iterdir()) == [], "neither a root nor a configuration of Keras"


def test_everything_that_is_wrong_is_said_at_once_and_each_failure_ends_with_one_fix(bare, tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text('{"backend": "torch"}')
    jax = KERAS.replace("'tensorflow'", "'jax'")
    with extended(bare, numpy=NUMPY, tensorflow=TENSORFLOW, keras=jax) as python:
        shown = doctor(
            python=python,
            HOME=str(tmp_path),
            KERAS_BACKEND="jax",
            PODLIFT_WROKERS="2",
            PODLIFT_WORKERS="many",
            PODLIFT_LIMIT_GRACE="-1",
            PODLIFT_VERTEX_REGIONS=",",
            http_proxy="http://me:hunter2@proxy:3128",
        )
    assert shown.code == 3
    said = "\n".join(shown.lines)
    bad = [line for line in shown.lines if not line.startswith("ok ")]
    assert [line for line in bad if line.count("Next: ") != 1] == []
    assert "Unknown setting PODLIFT_WROKERS. Did you mean 'PODLIFT_WORKERS'? Next: unset PODLIFT_WROKERS" in said
    assert "PODLIFT_WORKERS: must be a number. Received: 'many'. Next: unset PODLIFT_WORKERS" in said
    assert "PODLIFT_LIMIT_GRACE" in said and said.count("Next: unset PODLIFT_LIMIT_GRACE") == 1
    assert "PODLIFT_VERTEX_REGIONS: vertex_regions: must name one at least" in said
    assert f"{tmp_path / 'root'} is not a folder. Next: use another root" in shown.line("FAILED", "root")
    assert "http_proxy also applies to localhost and 127.0.0.1" in shown.line("warning", "proxy")
    assert "Next: export no_proxy=localhost,127.0.0.1" in shown.line("warning", "proxy")
    assert "KERAS_BACKEND is 'jax'" in said and "keras.json chooses the backend 'torch'" in said
    assert "hunter2" not in shown.stdout + shown.stderr
    failed = sum(line.startswith("FAILED") for line in bad)
    assert shown.stderr.startswith(f"{failed} failed, ")


def test_json_has_the_same_findings_and_the_fix_for_tensorflow_names_this_python(bare: Path) -> None:
    python = bare.parents[2] / "bin" / "python"
    shown = doctor("--json", python=python, PODLIFT_ROOT="gs://bucket")
    found = json.loads(shown.stdout)
    assert (shown.code, found["exit_code"], set(found)) == (3, 3, {"version", "checks", "failed", "exit_code"})
    assert all(set(check) == {"name", "ok", "level", "said", "fix", "command"} for check in found["checks"])
    failed = [check["name"] for check in found["checks"] if not check["ok"] and check["level"] == "error"]
    assert (failed, found["failed"]) == (["root", "tensorflow"], 2)
    tensorflow = next(check for check in found["checks"] if check["name"] == "tensorflow")
    assert tensorflow["said"] == f"not installed for {python}"
    assert tensorflow["fix"] == f"{python} -m pip install 'podlift[tf]'"
    assert all(bool(check["fix"]) != check["ok"] for check in found["checks"])


CONFLICT = "raise ImportError('first\\ncannot import runtime_version from google.protobuf')"
BROKEN = [
    ("tensorflow", CONFLICT, "ImportError: cannot import runtime_version from google.protobuf", "--force-reinstall"),
    ("tensorflow", None, "has no attribute '__version__'", "--force-reinstall"),
    ("tensorflow", "import os; os.kill(os.getpid(), 4)", "killed by SIGILL", "AVX"),
    ("tensorflow", "import os; os._exit(7)", "ended with exit code 7", "--force-reinstall"),
    ("tensorflow", TENSORFLOW.replace("4.0", "5.0"), "computes 1 + 1 + 1 + 1 = 5.0", "--force-reinstall"),
    ("tensorflow", TENSORFLOW.replace("2.19", "2.9"), "2.9.0 is outside 2.16 to ", "tensorflow>="),
    ("tensorflow", TENSORFLOW.replace("2.19.0", "3.0.0-dev2027"), "3.0.0-dev2027 is", "tensorflow>="),
    ("keras", KERAS.replace("3.9", "2.15"), "2.15.0 is not Keras 3", "keras>=3"),
    ("keras", KERAS.replace("'tensorflow'", "'jax'"), "computes with 'jax'", "KERAS_BACKEND=tensorflow"),
    ("keras", "1/0", "ZeroDivisionError: division by zero", "--force-reinstall"),
    ("numpy", "raise ImportError('libopenblas.so.0')", "ImportError: libopenblas.so.0", "--force-reinstall"),
]


@pytest.mark.parametrize(("name", "text", "said", "fix"), BROKEN)
def test_a_framework_that_does_not_work_or_fit_is_the_only_one_that_is_named(
    bare: Path, tmp_path: Path, monkeypatch, name: str, text: str | None, said: str, fix: str
) -> None:
    with extended(bare, **{"numpy": NUMPY, "tensorflow": TENSORFLOW, "keras": KERAS, name: text}) as python:
        monkeypatch.setattr(sys, "executable", str(python))
        found = interpreter.frameworks({"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    (wrong,) = [check for check in found if not check.ok and check.level in ("error", "warning")]
    assert wrong.name == name
    assert (wrong.level == "warning") is (" is outside " in wrong.said)
    assert said in wrong.said and fix in wrong.fix
    if name != "tensorflow":
        assert [check.level for check in found if "no --code-keras legacy" in check.said] == ["note"]


def test_a_tensorflow_that_takes_too_long_is_no_failure_and_is_not_reinstalled() -> None:
    found = {check.name: check for check in interpreter.frameworks(os.environ, limit_s=0.01)}
    slow = "the import was not done after 0.01 s: this machine is busy, or reads the packages for the first time"
    assert (found["tensorflow"].level, found["tensorflow"].said) == ("warning", slow)
    assert found["tensorflow"].fix == "run podlift doctor again"


def test_a_root_that_cannot_be_written_fails(bare: Path, tmp_path: Path) -> None:
    before = tuple(as_somebody(*POWERLESS))
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    shown = doctor("--root", str(closed / "root"), python=bare.parents[2] / "bin" / "python", before=before)
    assert shown.code == 3
    assert f"{closed / 'root'}, to be created in {closed}, is not writable: " in shown.line("FAILED", "root")


def test_a_root_in_a_folder_of_another_user_has_an_unknown_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", closed)
    found = machine.disks("/home/other/root")
    assert (found[0].name, found[0].level) == ("disk", "error") and len(found) > 1
    assert found[0].said == "the free space of /home/other/root is not known: Permission denied"


def test_a_thread_of_a_row_does_not_hold_the_process() -> None:
    program = (
        "import time; from sdk.checks.check import Row; from sdk.cli.doctor import answers; from sdk.clock import SystemClock;"
        "print(list(answers([Row('slow', lambda: time.sleep(1000), online=True)], SystemClock(), limit_s=0.1))[0].level)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, cwd=REPO)
    assert done.stdout.strip() == "unknown", done.stderr


def test_a_row_without_an_answer_or_with_a_mistake_costs_no_other_row() -> None:
    told = threading.Event()

    def broken() -> list[Check]:
        raise ValueError("an odd machine")

    def silent() -> list[Check]:
        told.wait(LIMIT_S)
        return []

    net, last = (Row(name, lambda name=name: [fine(name, "here")], online=name == "net") for name in ("net", "last"))
    rows = [Row("odd", broken), Row("slow", silent, online=True), net, last]
    found = list(answers(rows, SystemClock(), limit_s=0.2))
    told.set()
    assert [(each.name, each.level) for each in found if not each.ok] == [("odd", "error"), ("slow", "unknown")]
    assert [(each.name, each.level) for each in found if each.ok] == [("net", "note"), ("last", "note")]
    assert "ValueError: an odd machine" in found[0].said and "no answer within 0.2 s" in found[1].said


def test_an_account_that_is_not_asked_in_time_fails(monkeypatch, tmp_path: Path, capsys) -> None:
    told = threading.Event()

    class Silent:
        def rows(self, *_: object) -> list[Row]:
            told.wait(LIMIT_S)
            return []

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(VertexServices, "setup", Silent())
    monkeypatch.setattr(sys.modules["sdk.cli.doctor"], "_LIMIT_S", 0.1)
    code = app.run(["doctor", "--backend", "vertex", "--vertex-bucket", "mine"])
    told.set()
    said = "There was no answer within 0.1 s. Next: check the network, then podlift doctor again."
    assert (code, capsys.readouterr().err) == (3, f"podlift: {said}\n")


def test_the_limits_equal_the_limits_of_the_shell() -> None:
    program = "from sdk.upkeep.doctor import machine; print(machine.limits())"
    command = ["/bin/sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-c", program]
    shown = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    assert "only 64 open files" in shown and "ulimit -n 4096" in shown


@pytest.mark.parametrize(
    ("check", "ok", "level"),
    [
        (interpreter.python((3, 9), "python"), False, "error"),
        (interpreter.python((3, 10), "python"), True, None),
        (interpreter.python((3, 14), "python"), False, "error"),
        (interpreter.machine("linux", "x86_64", "glibc 2.36"), True, None),
        (interpreter.machine("linux", "riscv64", "glibc 2.36"), False, "warning"),
        (interpreter.machine("linux", "x86_64", ""), False, "warning"),
        (machine.disk("disk", "/x", 6e9, warn_bytes=5e9, fix="x"), True, None),
        (machine.disk("disk", "/x", 4e9, warn_bytes=5e9, fix="x"), False, "warning"),
        (machine.disk("disk", "/x", 0, warn_bytes=5e9, fix="x"), False, "error"),
        (machine.disk("disk", "/x", None, warn_bytes=5e9, fix="x"), False, "note"),
        (machine.memory_per_cpu(8e9, 8), True, None),
        (machine.memory_per_cpu(7e9, 8), False, "warning"),
        (machine.limit("files", -1, 1024, "open files", "x"), True, None),
        (machine.limit("files", 1024, 1024, "open files", "x"), True, None),
        (machine.limit("files", 1023, 1024, "open files", "x"), False, "warning"),
        (machine.localhost(["127.0.0.1", "::1"]), True, None),
        (machine.localhost(["::1"]), False, "error"),
        (root.skew(0.1), True, None),
        (root.skew(-60), False, "warning"),
        (root.file_system("/r", None), True, None),
        (root.file_system("/r", Mount("/", "ext4")), True, None),
        (root.file_system("/r", Mount("/r", "nfs4")), False, "warning"),
        (root.file_system("/r", Mount("/r", "tmpfs")), False, "warning"),
    ],
)
def test_every_finding_is_judged(check, ok: bool, level: str | None) -> None:
    assert (check.ok, bool(check.fix)) == (ok, not ok)
    assert level is None or check.level == level
    assert check.said


@pytest.mark.parametrize(
    ("variables", "ok", "fix"),
    [
        ({}, True, ""),
        ({"http_proxy": ""}, True, ""),
        ({"HTTPS_PROXY": "x", "no_proxy": "localhost,127.0.0.1"}, True, ""),
        ({"https_proxy": "x", "NO_PROXY": "*"}, True, ""),
        ({"https_proxy": "x"}, False, "export no_proxy=localhost,127.0.0.1"),
        ({"grpc_proxy": "x", "no_proxy": "a.b,localhost"}, False, "export no_proxy=a.b,localhost,127.0.0.1"),
    ],
)
def test_a_proxy_must_not_be_asked_for_this_machine(variables: dict[str, str], ok: bool, fix: str) -> None:
    (check,) = machine.proxies(variables)
    assert (check.ok, check.fix) == (ok, fix)


def test_the_python_that_is_asked_for_is_the_one_that_can_be_installed() -> None:
    low, high = interpreter.PYTHON_RANGE
    wanted = f'requires-python = ">={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}"'
    assert wanted in (REPO / "pyproject.toml").read_text()


def test_the_mount_that_holds_a_path_is_the_deepest_and_the_latest() -> None:
    roots = "rootfs / rootfs rw 0 0\n/dev/vda / ext4 rw 0 0\n"
    table = parse(f"{roots}host:/x /mnt/my\\040data nfs4 rw 0 0\ntmpfs /mnt tmpfs rw 0 0\nbroken\n")
    assert holding("/home/me", table) == Mount("/", "ext4")
    assert holding("/mnt/my data/runs", table) == Mount("/mnt/my data", "nfs4")
    assert holding("/mnt/my dat", table) == Mount("/mnt", "tmpfs")
    assert holding("/x", []) is None
    assert inside("/mnt", table) == ["/mnt", "/mnt/my data"]
    assert inside("/mnt/my", table) == []


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"action": {"type": "Delete"}, "condition": {"age": 30}}, "age=30"),
        ({"action": {"type": "Delete"}, "condition": {"age": 30, "matchesPrefix": ["podlift/ru"]}}, "age=30"),
        ({"action": {"type": "Delete"}, "condition": {"age": 30, "matchesPrefix": ["pod"]}}, "age=30"),
        ({"action": {"type": "Delete"}, "condition": {"age": 30, "matchesPrefix": ["other/", "podlift-2/"]}}, ""),
        ({"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 1}}, ""),
    ],
)
def test_lifecycle_rules_that_delete_files_of_a_schedule_are_named(rule: dict, said: str) -> None:
    check = root.lifecycle("gs://mine/podlift", {"lifecycle": {"rule": [rule]}})
    assert check.ok is not bool(said)
    assert said in check.said
    # A root without a prefix is the whole bucket.
    whole = root.lifecycle("gs://mine", {"lifecycle": {"rule": [rule]}})
    prefixed = "matchesPrefix" in rule["condition"] and rule["action"]["type"] == "Delete"
    assert whole.ok is not (bool(said) or prefixed)
