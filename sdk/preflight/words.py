"""A preflight's report as text."""

from __future__ import annotations

from collections.abc import Sequence

from ..planning.preflight_findings import Layer, PreflightReport
from . import sizes

_LAYERS = 10


def describe(report: PreflightReport) -> str:
    """Return a report as text, with one line per finding."""
    lines = [str(finding) for finding in report.findings]
    if report.stopped:
        lines.append(f"- stopped after: {report.reached}. {report.stopped}")
    lines += _sizes(report)
    lines.append(f"{report.accelerator}: {_verdict(report)}, in {report.seconds:.1f} s")
    return "\n".join(lines)


def _verdict(report: PreflightReport) -> str:
    if report.outcome == "passed":
        return "found nothing that a TPU refuses"
    if report.outcome == "failed":
        return "no verdict: the program failed before its first training step, so no step was inspected"
    if report.outcome == "no step":
        return "no verdict: the program has no training step, so no step was inspected"
    if report.outcome == "unfinished":
        return "no verdict: the inspection is incomplete"
    count = sum(finding.level == "refused" for finding in report.findings)
    return f"refused: {count} finding{'s' if count > 1 else ''}"


def _sizes(report: PreflightReport) -> list[str]:
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
        lines.append(f"layer: {layer.name}: {sizes.shape_text(layer)}, {layer.padded:.0%} of it padding")
    return lines


def _feeding(report: PreflightReport) -> str:
    wanted, made = report.wanted_per_s, report.feed_per_s
    text = "their peak rate is unknown" if wanted is None else f"at their peak they consume {wanted:,.0f} a second"
    return text if made is None else f"{text}, and this machine's input pipeline produces {made:,.0f}"


def _worst(layers: Sequence[Layer]) -> list[Layer]:
    return [layer for layer in layers[:_LAYERS] if layer.padded > 0]
