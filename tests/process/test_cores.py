"""How the tasks of a machine divide its cores, and how many a process may use."""

from __future__ import annotations

import json
import os
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import LIMIT_S, heard, said

import sdk
from sdk.process import cores
from sdk.process.cores import Cores
from sdk.runtime.patches import devices

pytestmark = pytest.mark.process

PAIR = ("chief-0", "worker-0")
PROGRAM = """
import json, os
names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
print(json.dumps([sorted(os.sched_getaffinity(0)), [os.environ.get(name) for name in names]]), flush=True)
"""
several = pytest.mark.skipif(len(cores.available().cpus) < 2, reason="needs two CPUs")
unlimited = pytest.mark.skipif(cores.available().has_quota, reason="a quota leaves the CPUs to the kernel")


def machine(cpus: range, limit: float | None = None) -> Cores:
    return Cores(cpus=tuple(cpus), limit=limit if limit is not None else len(cpus))


def divided(tasks: tuple[str, ...], available: Cores, wanted: str = "share") -> dict[str, tuple[tuple[int, ...], int]]:
    made = cores.divide(tasks, available, wanted)
    return {task: (share.cpus, share.threads) for task, share in made.shares.items()}


def test_parts_have_equally_many_cpus() -> None:
    assert cores.parts(range(2), 2) == [(0,), (1,)]
    assert cores.parts(range(8), 2) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    # The remaining CPUs are shared: the slowest task decides how long a step takes.
    assert cores.parts(range(3), 2) == [(0, 2), (1, 2)]
    assert cores.parts(range(2), 3) == [(0, 1)] * 3


def test_one_task_is_not_restricted_and_more_tasks_than_cpus_have_a_thread_each() -> None:
    assert divided(("chief-0",), machine(range(4))) == {"chief-0": ((), 0)}
    assert divided((*PAIR, "worker-1"), machine(range(2))) == {task: ((), 1) for task in (*PAIR, "worker-1")}


def test_a_task_that_mostly_waits_has_no_reserved_cpus() -> None:
    served = divided((*PAIR, "worker-1", "ps-0"), machine(range(8)))
    # The chief gives out the steps that the workers compute.
    assert (served["worker-0"][0], served["worker-1"][0]) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert served["chief-0"] == served["ps-0"] == ((), 2)
    # A single task that trains keeps all, and forked tasks share the values read at imports.
    watched = cores.divide(("chief-0", "evaluator-0"), machine(range(2)))
    assert watched.variables("chief-0") == {}
    assert watched.variables("evaluator-0") == {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    # Servers can answer all tasks at the same time.
    made = cores.divide((*PAIR, "worker-1", "ps-0"), machine(range(2)))
    assert {made.variables(task)["TF_NUM_INTEROP_THREADS"] for task in made.shares} == {"5"}


def test_under_a_quota_or_without_a_choice_of_cpus_threads_are_divided() -> None:
    quota = machine(range(64), limit=4)
    assert divided(PAIR, quota) == {task: ((), 2) for task in PAIR}
    shares = "2 tasks on a quota of 4 on CPUs 0-63: chief-0 has 2 threads, worker-0 has 2 threads"
    assert str(cores.divide(PAIR, quota)) == shares
    assert cores.within_quota(machine(range(64), limit=1.5))["TF_NUM_INTRAOP_THREADS"] == "2"
    assert cores.within_quota(machine(range(64))) == {}
    mac = Cores(cpus=(), limit=8)
    assert divided(PAIR, mac) == {task: ((), 4) for task in PAIR}
    assert str(cores.divide(PAIR, mac)) == "2 tasks on 8 CPUs: chief-0 has 4 threads, worker-0 has 4 threads"


def test_the_setting_gives_all_or_a_number() -> None:
    assert divided(PAIR, machine(range(4)), "all") == {task: ((), 0) for task in PAIR}
    # On any CPU: several runs would all take the first ones.
    assert divided(PAIR, machine(range(4)), "2") == {task: ((), 2) for task in PAIR}
    assert divided(("chief-0",), machine(range(3)), "4") == {"chief-0": ((), 3)}
    (warned,) = [finding.message for finding in _plan(local_cores=4096).findings if "local_cores" in finding.message]
    assert warned.startswith("local_cores=4096: each task gets")
    with pytest.raises(
        sdk.InputError, match=r"local_cores: must be share, all or a number of CPUs from 1. Received: 0"
    ):
        _plan(local_cores=0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs affinity")
def test_where_cpus_are_no_longer_allowed_a_process_starts_nevertheless() -> None:
    before = os.sched_getaffinity(0)
    with cores.confined([4000]):
        assert os.sched_getaffinity(0) == before


def _plan(**settings: object) -> sdk.Plan:
    Path("train.py").write_text("")
    return sdk.plan("train.py", **settings)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("process", "files", "limit"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        # The group above has the lower limit, as the group of a pod.
        ("0::/pod/a", {"pod/cpu.max": "50000 100000", "pod/a/cpu.max": "max 100000"}, 0.5),
        ("4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 0.5),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        # In a container, the path may be the host's.
        ("1:cpu:/docker/abc\n0::/", {"cpu/cpu.cfs_quota_us": "25000", "cpu/cpu.cfs_period_us": "50000"}, 0.5),
        ("4:cpuset:/\n3:name=systemd:/", {}, None),
    ],
)
def test_the_quota_of_a_container_is_found_in_both_versions(tmp_path, process, files, limit) -> None:
    for name, text in {"proc/self/cgroup": process, **{f"sys/fs/cgroup/{name}": files[name] for name in files}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    free = cores.available(tmp_path / "none").limit
    assert cores.available(tmp_path).limit == (free if limit is None else min(free, limit))


@several
def test_cpus_are_sorted_by_node_and_core(tmp_path: Path) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    for number, cpu in enumerate((second, first)):
        folder = tmp_path / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpu}\n")
    assert cores.available(tmp_path).cpus[:2] == (second, first)
    assert sorted(cores.available(tmp_path / "none").cpus) == sorted(os.sched_getaffinity(0))


@several
@unlimited
def test_each_task_has_its_part_and_the_log_says_so_once(write) -> None:
    write("train.py", PROGRAM)
    run = sdk.submit("train.py", workers=2)
    run.result(LIMIT_S)
    spoken = {task: json.loads(said(run, task)[0]) for task in run.plan.tasks}
    cpus = [set(cpus) for cpus, _ in spoken.values()]
    assert cpus[0] & cpus[1] == set() or len(os.sched_getaffinity(0)) % 2
    assert len(cpus[0]) == len(cpus[1])
    for own, threads in spoken.values():
        assert threads == [str(len(own)), str(max(2, len(own))), str(len(own))]
    lines = [line.text for line in run.logs() if " tasks on CPUs " in line.text]
    has = [f"{task} has CPU{'s' * (len(own) > 1)} {cores.spans(own)}" for task, (own, _) in spoken.items()]
    assert lines == [f"podlift: 2 tasks on CPUs {cores.spans(os.sched_getaffinity(0))}: {', '.join(has)}"]


@pytest.mark.full
@pytest.mark.cold
@several
def test_a_run_keeps_to_the_cpus_that_it_may_use_and_to_threads_of_its_jobs_own(write) -> None:
    write("train.py", PROGRAM)
    one, whole = min(os.sched_getaffinity(0)), sorted(os.sched_getaffinity(0))
    with cores.confined([one]):
        run = sdk.submit("train.py", workers=2)
    run.result(LIMIT_S)
    assert [json.loads(said(run, task)[0]) for task in run.plan.tasks] == [[[one], ["1", "2", "1"]]] * 2
    run = sdk.submit("train.py", workers=2, env={"TF_NUM_INTRAOP_THREADS": "7"})
    run.result(LIMIT_S)
    assert [json.loads(said(run, task)[0]) for task in run.plan.tasks] == [[whole, ["7", None, None]]] * 2


@several
def test_threads_that_write_may_use_all_cpus_unless_the_program_has_chosen_its_own(monkeypatch) -> None:
    whole = sorted(os.sched_getaffinity(0))

    def work(own: int) -> list[int]:
        os.sched_setaffinity(0, [own])
        cores.widen()
        return sorted(os.sched_getaffinity(0))

    def after(own: int) -> list[int]:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(work, own).result()

    assert after(whole[0]) == [whole[0]]  # not a task of several
    monkeypatch.setenv(cores.VARIABLE, f"{whole[0]}/{cores.spans(whole)}")
    assert after(whole[0]) == whole
    assert after(whole[1]) == [whole[1]]


@several
def test_a_program_that_asks_for_more_threads_may_use_all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sorted(os.sched_getaffinity(0))
    lines = heard()

    class Context:
        number = 0
        intra_op_parallelism_threads = property(
            lambda self: self.number, lambda self, new: setattr(self, "number", new)
        )

    def asking(number: int) -> list[int]:
        context = Context()
        with cores.confined(whole[:1]):
            context.intra_op_parallelism_threads = number
            assert context.intra_op_parallelism_threads == number
            return sorted(os.sched_getaffinity(0))

    assert devices.thread_patches() == []
    monkeypatch.setenv(cores.VARIABLE, f"{whole[0]}/{cores.spans(whole)}")
    (patch,) = devices.thread_patches()
    module = types.ModuleType("context")
    vars(module)["Context"] = Context
    patch.apply(module)
    assert asking(1) == whole[:1]
    assert asking(2) == whole
    assert lines == ["the program requests 2 threads for an operation: this task may use all CPUs of the run"]
