"""The prediction of what communication costs: its limits, its direction, and when the plan warns."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import collectives
from sdk.checks.scaling import Costs, Network, Pace, computing_s, dominating, exchange_s, share
from sdk.hardware.machines import gbit

sizes, counts = st.integers(4, 10**10), st.integers(2, 64)
networks = st.builds(Network, gbit=st.none() | st.floats(0.1, 400), per_core=st.floats(0.01, 32))
paces = st.builds(
    Pace,
    run=st.just("digits-aaaaaa"),
    gradient_bytes=sizes,
    step_s=st.floats(1e-4, 100),
    workers=st.integers(1, 64),
    network=st.none() | networks,
)


def pace(size: int, step_s: float, workers: int = 1) -> Pace:
    return Pace(run="digits-aaaaaa", gradient_bytes=size, step_s=step_s, workers=workers, network=Network())


@pytest.mark.parametrize(
    ("megabytes", "workers", "rate", "at_least", "at_most"),
    [
        # The wire alone: 2 (n-1)/n times the bytes.
        (125, 2, 1, 1.0, 1.8),
        (125, 2, 10, 0.1, 0.8),
        (125, 32, 1, 1.9, 3.5),
        (0, 2, 1, 0.0001, 0.01),
        (1000, 4, 100, 0.12, 9.0),
    ],
)
def test_what_an_exchange_takes(megabytes: int, workers: int, rate: float, at_least: float, at_most: float) -> None:
    assert at_least <= exchange_s(megabytes * 10**6, workers, Network(gbit=rate)) <= at_most


@given(sizes, counts, networks)
def test_more_bytes_more_workers_and_a_slower_network_never_take_less(size: int, count: int, network: Network) -> None:
    takes = exchange_s(size, count, network)
    assert takes <= exchange_s(size * 2, count, network)
    assert takes <= exchange_s(size, count + 1, network)
    assert takes <= exchange_s(size, count, Network(gbit=(network.gbit or 1000) / 2, per_core=network.per_core))
    assert takes <= exchange_s(size, count, Network(gbit=network.gbit, per_core=network.per_core * 2))


@given(paces, counts, networks)
def test_a_share_is_a_share_and_grows_with_what_is_exchanged(pace: Pace, count: int, network: Network) -> None:
    part = share(pace, count, network)
    assert 0 < part < 1
    assert 0 < computing_s(pace) <= pace.step_s
    assert share(pace, 1, network) == 0.0
    assert part <= share(pace, count + 1, network)


def test_what_a_run_of_several_workers_waited_for_is_not_computing() -> None:
    network = Network(gbit=1)
    waited = exchange_s(125_000_000, 2, network)
    seen = Pace(run="a-aaaaaa", gradient_bytes=125_000_000, step_s=waited + 0.5, workers=2, network=network)
    assert computing_s(seen) == pytest.approx(0.5)
    assert share(seen, 2, network) == pytest.approx(waited / (waited + 0.5))


@pytest.mark.parametrize(
    ("size", "step_s", "workers", "network", "warns"),
    [
        (400_000_000, 0.2, 4, Network(gbit=10), True),
        (400_000_000, 30.0, 4, Network(gbit=10), False),
        (40_000, 0.2, 4, Network(gbit=10), False),
        # A warning about a model this small would help nobody.
        (40_000, 0.001, 2, Network(gbit=10), False),
        (400_000_000, 0.2, 1, Network(gbit=10), False),
        (400_000_000, 0.2, 4, None, False),
        (400_000_000, 0.2, 2, Network(per_core=1), True),
    ],
)
def test_the_plan_warns_when_communication_dominates(
    size: int, step_s: float, workers: int, network: Network | None, warns: bool
) -> None:
    found = list(dominating(pace(size, step_s), workers, network))
    assert len(found) == warns
    if found:
        assert found[0].level == "warning"
        assert "400 MB of gradients over" in found[0].message
        assert "in the run digits-aaaaaa (cpu)." in found[0].message


def test_workers_that_share_a_core_take_turns_but_not_for_the_wire() -> None:
    alone, size = exchange_s(10**8, 8, Network()), 10**8
    assert exchange_s(size, 8, Network(per_core=4)) == pytest.approx(4 * alone)
    slow = exchange_s(size, 8, Network(gbit=0.1))
    assert exchange_s(size, 8, Network(gbit=0.1, per_core=4)) == slow


def test_of_gpus_on_several_machines_only_the_wire_is_predicted() -> None:
    assert exchange_s(125_000_000, 2, Network(gbit=1, grpc=False)) == pytest.approx(1.0)


def test_the_fit_finds_the_costs_that_made_the_measurements() -> None:
    costs = Costs(sum_s=2e-3, message_s=5e-5, byte_s=2e-9)
    cases = [(count, size, rate) for count in (2, 4, 8) for size in (4, 10**6, 10**8) for rate in (None, 10.0)]
    found = []
    for count, size, rate in cases:
        network = Network(gbit=rate, per_core=count / 2)
        found.append(collectives.Sum(count, network, size, exchange_s(size, count, network, costs), 0.0))
    assert astuple(collectives.fit(found)) == pytest.approx(astuple(costs), rel=0.05)


@pytest.mark.parametrize(
    ("machine", "rate"), [("n1-standard-4", 10), ("e2-standard-4", 8), ("g2-standard-48", 50), ("m1-ultramem-40", None)]
)
def test_the_bandwidth_of_machines(machine: str, rate: float | None) -> None:
    assert gbit(machine) == rate


@pytest.mark.parametrize(("accelerator", "rate"), [("t4", None), ("v100:8", None), ("p100:2", 16), ("cpu", 16)])
def test_an_n1_machine_with_t4_or_v100_has_more_than_its_own_so_none_is_claimed(
    accelerator: str, rate: float | None
) -> None:
    assert gbit("n1-standard-8", accelerator) == rate
