"""The decisions of a container that need no container."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdk.backends.vertex import request
from sdk.errors import InputError
from sdk.execution import container, identity
from sdk.execution.shared_agreement import ReadyContainer, newest
from sdk.job import cluster
from sdk.packaging.runtime_archive import loader
from sdk.runtime.rendezvous.bucket import AHEAD_S, Lookahead
from sdk.runtime.rendezvous.files import StepCoordinator

# --- Exit codes of containers -------------------------------------------------------------------------------------

TERMS = request.CONTAINER
CODES = {
    "done": (0, 0),
    "an error": (1, 1),
    "another code of the program": (17, 17),
    "saved, and no preemption more": (75, 75),
    "aborted too often": (-6, 3),
    "aborted, as a shell says": (134, 3),
    "segmentation fault, too often": (-11, 3),
    "segmentation fault, as a shell says": (139, 3),
    "killed too often": (-9, 137),
}


@pytest.mark.parametrize(("code", "left"), CODES.values(), ids=CODES)
def test_a_containers_exit_code_decides_whether_the_service_starts_it_again(code, left) -> None:
    assert container.container_code(code, TERMS) == left


def test_another_service_has_other_exit_codes() -> None:
    terms = dataclasses.replace(TERMS, restart_code=42, restarting_codes=(42,))
    assert [container.container_code(code, terms) for code in (42, 134, -6)] == [3, 134, 134]


# --- Which containers are an attempt ------------------------------------------------------------------------------

TASKS = ("chief-0", "worker-0")
READY = {
    "nobody came": ([], {}),
    "one came": ([("worker-0", "a", 1)], {"worker-0": "a"}),
    "both came": ([("worker-0", "a", 1), ("chief-0", "b", 2)], {"chief-0": "b", "worker-0": "a"}),
    "one came twice": ([("worker-0", "a", 1), ("worker-0", "b", 2)], {"worker-0": "b"}),
    "in any order": ([("worker-0", "b", 2), ("worker-0", "a", 1)], {"worker-0": "b"}),
    "somebody unknown": ([("ps-7", "a", 1)], {}),
}


@pytest.mark.parametrize(("ready", "members"), READY.values(), ids=READY)
def test_the_newest_container_of_each_task_is_taken(ready, members) -> None:
    there = [ReadyContainer(task=task, job=1, nonce=nonce, time=time) for task, nonce, time in ready]
    assert {task: each.nonce for task, each in newest(there, TASKS).items()} == members


# --- Who a container is -------------------------------------------------------------------------------------------

WHO = {
    "chief": ({"cluster_spec": ("workerpool0", 0)}, "chief-0"),
    "worker": ({"cluster_spec": ("workerpool1", 1)}, "worker-1"),
    "evaluator": ({"cluster_spec": ("workerpool3", 0)}, "evaluator-0"),
    "parameter server": ({"cluster_spec": ("workerpool2", 0)}, "ps-0"),
    "an index that is text": ({"cluster_spec": ("workerpool1", "0")}, "worker-0"),
    "only TF_CONFIG": ({"tf_config": ("worker", 1)}, "worker-1"),
    "master": ({"tf_config": ("master", 0)}, "chief-0"),
    "both": ({"cluster_spec": ("workerpool1", 0), "tf_config": ("worker", 0)}, "worker-0"),
    "a strange pool": ({"cluster_spec": ("pool", 0), "tf_config": ("chief", 0)}, "chief-0"),
}
ALL = ("chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0")


def told(**about) -> dict[str, str]:
    return {
        name.upper(): json.dumps({"job": None, "task": {"type": kind, "index": index}})
        for name, (kind, index) in about.items()
    }


@pytest.mark.parametrize(("about", "name"), WHO.values(), ids=WHO)
def test_a_container_finds_its_task_in_the_variables_of_vertex_ai(about, name) -> None:
    assert identity.task_of(told(**about), ALL, request.terms(ALL)) == name


def test_a_service_may_name_the_task_in_a_variable() -> None:
    other = dataclasses.replace(TERMS, identity=("JOB", "POD"), tasks={"run-pod-4": "evaluator-0"})
    assert identity.task_of({"POD": "worker-1"}, ALL, other) == "worker-1"
    assert identity.task_of({"POD": "run-pod-4"}, ALL, other) == "evaluator-0"
    with pytest.raises(InputError, match="cannot determine its task"):
        identity.task_of({"POD": "worker-7"}, ALL, other)


def test_a_service_without_a_cluster_of_its_own_has_the_addresses_of_tf_config() -> None:
    config = {"cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"], "other": ["d:4"]}}
    environ = {"CLUSTER_SPEC": "{}", "TF_CONFIG": json.dumps(config)}
    found = identity.addresses(environ, ALL, request.terms(ALL))
    assert found == {"chief-0": "a:1", "worker-0": "b:2", "worker-1": "c:3"}


def test_without_a_chief_the_first_worker_is_in_pool_0() -> None:
    tasks = ("worker-0", "worker-1", "worker-2")
    assert identity.task_of(told(cluster_spec=("workerpool0", 0)), tasks, request.terms(tasks)) == "worker-0"
    assert identity.task_of(told(cluster_spec=("workerpool1", 1)), tasks, request.terms(tasks)) == "worker-2"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"CLUSTER_SPEC": "{"},
        {"CLUSTER_SPEC": "[]"},
        {"CLUSTER_SPEC": '{"task": 7}'},
        told(cluster_spec=("workerpool1", 9)),
    ],
)
def test_a_container_without_usable_variables_reports_that_its_task_is_unknown(environ) -> None:
    with pytest.raises(InputError, match="cannot determine its task"):
        identity.task_of(environ, ALL, request.terms(ALL))
    assert identity.task_of(environ, ("chief-0",), TERMS) == "chief-0"


def test_addresses_are_those_of_vertex_ai() -> None:
    members = cluster.tasks(3, evaluator=True)
    places = {member.name: f"{cluster.host_name(member, 'run')}:2222" for member in members}
    for member in members:
        environ = cluster.environment(member, members, places, {})
        names = [each.name for each in members]
        assert identity.task_of(environ, names, request.terms(names)) == member.name
        assert identity.addresses(environ, names, request.terms(names)) == places


# --- What is done after which step --------------------------------------------------------------------------------


def test_entries_lie_about_two_seconds_apart_however_fast_the_steps_are() -> None:
    for step_s in (0.001, 0.05, 0.7, 30.0):
        ahead, found, count = Lookahead(), [], 0
        while len(found) < 40:
            while ahead.is_due(count):
                found.append(ahead.write(count, count * step_s))
            count += 1
        assert found[:2] == [1, 2]
        assert all(b > a for a, b in itertools.pairwise(found))
        width = found[-1] - found[-2]
        assert width == max(1, int(AHEAD_S / step_s)) or abs(width * step_s - AHEAD_S) < 0.1


class Paper:
    """Entries that come to this task when the test wants it.

    Args:
        known: what has come so far.
    """

    def __init__(self) -> None:
        self.known: list = []
        self.count = self.taken = self.last = 0
        self.save_due = lambda: None

    def needs(self, count: int) -> bool:
        """True where the task cannot go past that step yet."""
        return count > self.last and self.taken >= len(self.known)

    def begin(self) -> None: ...

    def close(self) -> None: ...

    def request_preemption(self) -> None: ...

    def next(self):
        entry = self.known[self.taken]
        self.taken, self.last = self.taken + 1, entry[0]
        return entry


@given(tasks=st.integers(2, 5), wish_at=st.integers(0, 800), seed=st.integers(0, 1 << 32))
def test_in_lockstep_all_tasks_do_the_same_after_the_same_step_whenever_the_entries_arrive(
    tasks, wish_at, seed
) -> None:
    draw = random.Random(seed)
    papers = [Paper() for _ in range(tasks)]
    coordinators = [StepCoordinator(paper) for paper in papers]
    done: list[dict[int, str]] = [{} for _ in range(tasks)]
    counts, ahead, entries, now = [0] * tasks, Lookahead(), [], 0.0
    # Some threads come late all the time.
    turns = draw.choices(range(2 * tasks + 1), weights=[draw.choice([1, 5, 40]) for _ in range(2 * tasks + 1)], k=1500)
    for turn, choice in enumerate(turns):
        now += draw.choice([0.01, 0.3, 2.0])
        if choice == 2 * tasks:
            # The first task's thread writes what is due; it knows its own entry at once.
            if ahead.is_due(counts[0]) and (not entries or entries[-1][1] != "stop"):
                action = "stop" if turn >= wish_at else draw.choice(["go", "go", "save"])
                entries.append((ahead.write(counts[0], now), action))
                papers[0].known = entries
        elif choice >= tasks:
            # Somebody else's thread reads one more.
            paper = papers[choice - tasks]
            paper.known = entries[: max(len(paper.known), min(len(entries), len(paper.known) + 1))]
        else:
            # A step ends in a task when every task has taken part in it.
            mine = counts[choice] + 1
            if min(counts) >= mine - 1 and not papers[choice].needs(mine) and coordinators[choice].exit_action is None:
                counts[choice] = mine
                action = coordinators[choice].step()
                if action is not None:
                    done[choice][mine] = action
    least = min(counts)
    assert max(counts) <= least + 1
    for each in done[1:]:
        assert {step: action for step, action in each.items() if step <= least} == {
            step: action for step, action in done[0].items() if step <= least
        }
    assert all(done[0].get(step) == action for step, action in entries if action != "go" and step <= counts[0])
    stops = [step for each in done for step, action in each.items() if action == "stop"]
    assert len(set(stops)) <= 1


def test_the_loader_is_short_and_nothing_in_it_is_expanded_by_vertex_ai() -> None:
    # It is in the request once for each pool of machines, whose limit is 100,000 characters.
    assert len(loader()) <= 6000
    assert "$(" not in loader()
