"""The resources that a job needs of a cluster, and the shortage there. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...text import and_more, duration

Amounts = Mapping[str, float]
_ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The resources of each task, and how Ray places them."""

    strategy: str
    pending_timeout_s: float
    tasks: Mapping[str, Amounts]


@dataclass(frozen=True, kw_only=True)
class ClusterResources:
    """The resources of a cluster: per living node, and the free ones in all."""

    nodes: Sequence[Amounts]
    free: Amounts


def shortage(placement: Placement, has: ClusterResources) -> str:
    """Return which resource is missing, how much of it is needed, and how much the cluster has."""
    needed, total = Counter[str](), Counter[str]()
    for amounts in placement.tasks.values():
        needed.update({name: float(amount) for name, amount in amounts.items()})
    for node in has.nodes:
        total.update({name: float(amount) for name, amount in node.items()})
    lacking = [
        f"{_amount(name, amount)} needed, and the cluster has {total[name]:g}"
        for name, amount in needed.items()
        if amount > total[name] + _ROUNDING
    ]
    if lacking:
        return "; ".join(lacking)
    for task, amounts in placement.tasks.items():
        if not any(_fits(amounts, node) for node in has.nodes):
            return f"no node has {_words(amounts)} together, which {task} needs. {_nodes(has)}"

    if placement.strategy == "STRICT_SPREAD" and len(has.nodes) < len(placement.tasks):
        return (
            f"STRICT_SPREAD needs {len(placement.tasks)} nodes, one for each task, and the cluster has {len(has.nodes)}"
        )
    if placement.strategy == "STRICT_PACK" and not any(_fits(needed, node) for node in has.nodes):
        return f"STRICT_PACK needs {_words(needed)} on one node. {_nodes(has)}"
    busy = [
        f"{_amount(name, amount)} needed, and {has.free.get(name, 0.0):g} of {total[name]:g} are free"
        for name, amount in needed.items()
        if amount > has.free.get(name, 0.0) + _ROUNDING
    ]
    return "; ".join(busy) or f"the free resources are not on the right nodes. {_nodes(has)}"


def infeasible(placement: Placement, has: ClusterResources) -> str:
    """Return why a job is not started."""
    return (
        f"The cluster did not give the resources of {len(placement.tasks)} tasks within ray_pending_timeout="
        f"{duration(placement.pending_timeout_s)}: {shortage(placement, has).rstrip('.')}. Next: add nodes or wait until "
        "others have finished, and podlift resume; or ask for fewer workers."
    )


def _fits(amounts: Amounts, node: Amounts) -> bool:
    return all(amount <= node.get(name, 0.0) + _ROUNDING for name, amount in amounts.items())


def _words(amounts: Amounts) -> str:
    return " and ".join(_amount(name, amount) for name, amount in amounts.items())


def _amount(name: str, amount: float) -> str:
    return f"{amount:g} {name}"


def _nodes(has: ClusterResources) -> str:
    nodes = [
        ", ".join(_amount(name, amount) for name, amount in node.items() if name in ("CPU", "GPU")) or "no CPU"
        for node in has.nodes
    ]
    return f"Its nodes have: {and_more(nodes, 6)}" if nodes else "It has no nodes"
