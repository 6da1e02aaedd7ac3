"""A report in words, a finding a line."""

from __future__ import annotations

from collections.abc import Sequence

from ..planning.preflight_findings import Layer, Report
from . import sizes

_LAYERS = 10


def describe(report: Report) -> str:
    """Return a report in words, a finding a line."""
    lines = [str(finding) for finding in report.findings]
    if report.stopped:
        lines.append(f"- came as far as: {report.reached}. {report.stopped}")
    lines += _sizes(report)
    lines.append(f"{report.accelerator}: {_verdict(report)}, in {report.seconds:.1f} s")
    return "\n".join(lines)


def _verdict(report: Report) -> str:
    if report.outcome == "passed":
        return "nothing that a TPU refuses was found"
    if report.outcome == "failed":
        return "no verdict: the program failed before its first training step, and nothing was looked at"
    if report.outcome == "no step":
        return "no verdict: the program has no training step, and nothing was looked at"
    if report.outcome == "unfinished":
        return "no verdict: the look was not finished"
    count = sum(finding.level == "refused" for finding in report.findings)
    return f"refused: {count} finding{'s' if count > 1 else ''}"


def _sizes(report: Report) -> list[str]:
    lines = []
    if report.batch is not None:
        programs = f"{report.programs} program{'s' if report.programs > 1 else ''}"
        lines.append(f"step: {report.batch} examples on each of {report.replicas} replicas, compiled to {programs}")
    if report.step_bytes is None and report.batch is not None:
        lines.append("memory: unknown, as the step was not compiled")
    if report.step_bytes is not None and report.memory_bytes is not None:
        fits = f"; {report.largest_batch} examples would fit" if report.largest_batch is not None else ""
        lines.append(
            f"memory: {report.step_bytes / 2**20:.0f} MiB of {report.memory_bytes / 2**30:.0f} GiB on each core, "
            f"{report.state_bytes / 2**20:.0f} MiB of it variables{fits}"
        )
    if report.examples_per_step is not None:
        lines.append(f"input: {report.examples_per_step} examples for each step of all replicas; {_feeding(report)}")
    for layer in _worst(report.layers):
        lines.append(f"layer: {layer.name}: {sizes.told(layer)}, {layer.padded:.0%} of it padding")
    return lines


def _feeding(report: Report) -> str:
    wanted, made = report.wanted_per_s, report.feed_per_s
    asked = (
        "how many a second they take is unknown"
        if wanted is None
        else f"at their peak they take {wanted:,.0f} a second"
    )
    return asked if made is None else f"{asked}, and this machine's input pipeline makes {made:,.0f}"


def _worst(layers: Sequence[Layer]) -> list[Layer]:
    return [layer for layer in layers[:_LAYERS] if layer.padded > 0]
