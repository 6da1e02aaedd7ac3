"""The process that inspects a program: runs it up to its training steps, and writes a report on them.

Usage: `python -m sdk.preflight.child FILE`, where FILE holds a `PreflightRequest` as JSON.
"""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import logs
from ..clock import SystemClock
from ..hardware import accelerators
from ..job.layout import RunPaths
from ..job.payload import Payload
from ..planning.preflight_findings import PreflightReport, StoppedBy, location, tidy
from ..records.recorder import Recorder
from ..runtime import bootstrap, context, import_guard
from ..runtime.patches import install, plumbing
from ..runtime.reporting import ProgressWriter, Reporter
from ..runtime.unpack import unpack
from . import advice, rules
from .observations import Observations, PreflightRequest, TracedStep, watch_arrays

_IN_USER_CODE = re.compile(r'File "([^"]+)", line (\d+)')
# The program runs on for a few calls, which show whether its steps are recompiled; fewer if each takes long.
_MOST_CALLS, _MOST_S = 12, 3.0
_LEAST_CALLS = 4
_MAX_MESSAGE = 300


def main(path: str) -> None:
    faulthandler.enable()
    logs.start()
    bootstrap.die_with_parent()
    ProgramInspection(PreflightRequest.from_json(Path(path).read_text())).run()


class ProgramInspection:
    def __init__(self, request: PreflightRequest) -> None:
        self._request = request
        self._row = accelerators.row(request.accelerator)
        self._report = PreflightReport(accelerator=request.accelerator, replicas=self._row.count or self._row.chips)
        self._began = time.monotonic()
        self._observations = Observations()
        self._work = ""

    def run(self) -> None:
        payload = Payload.from_json(Path(self._request.payload).read_bytes())
        self._reach("started")
        self._enter(payload)
        install(plumbing("preflight", "the step is inspected", self._changes()))
        stopped, by = self._program(payload)
        self._report = replace(self._report, stopped=stopped, stopped_by=by)
        if self._traced():
            # A copy: the inspection itself iterates over data sets, which must not count as the program's.
            self._study(replace(self._observations, datasets=list(self._observations.datasets)))
        self._write()
        # Does not wait for threads that the program started.
        os._exit(0)

    def _reach(self, stage: str) -> None:
        self._report = replace(self._report, reached=stage)
        with Path(self._request.progress).open("a") as file:
            file.write(f"{stage}\n")

    def _write(self) -> None:
        done = replace(
            self._report, findings=tidy(self._report.findings), seconds=round(time.monotonic() - self._began, 3)
        )
        Path(f"{self._request.report}.part").write_text(done.to_json())
        Path(f"{self._request.report}.part").rename(self._request.report)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()

    def _enter(self, payload: Payload) -> None:
        """Set up this process like a task of a run."""
        paths = RunPaths(payload.run_url)
        task = payload.tasks[0]
        work = Path(paths.work(payload.attempt, task))
        unpack(Path(payload.bundle), payload.digest, work)
        self._work = f"{work}{os.sep}"
        (work / payload.cwd).mkdir(parents=True, exist_ok=True)
        os.chdir(work / payload.cwd)
        sys.path[:] = [*(str(work / root) for root in payload.roots), *sys.path]
        import_guard.install(payload.source_dirs, work)
        recorder = Recorder(paths, task, payload.attempt, SystemClock())
        reporter = Reporter(None, recorder, ProgressWriter(paths.progress(payload.attempt, task)))
        context.enter(payload, task, reporter, None)
        self._reach("code unpacked")

    def _changes(self) -> dict[str, Callable[[ModuleType], None]]:
        # A program may import either first, and TensorFlow imports Keras before its own import is complete.
        return {
            "tensorflow": partial(self._or_end, self._watch),
            "keras.src.trainers.data_adapters.array_data_adapter": partial(
                self._or_end, partial(watch_arrays, self._observations)
            ),
        }

    def _or_end(self, change: Callable[[ModuleType], None], module: ModuleType) -> None:
        """Patch a module, or end the process: without the patch the program would train."""
        try:
            change(module)
        except Exception as error:
            message = (
                f"A preflight does not support this version of TensorFlow or Keras: {type(error).__name__}: {error}"
            )
            self._report = replace(self._report, stopped=message[:_MAX_MESSAGE], stopped_by="podlift")
            self._write()
            os._exit(0)

    def _watch(self, tensorflow: ModuleType) -> None:
        from ..runtime.tpu import devices
        from ..runtime.tpu import install as stand_in
        from . import capture

        cores = self._row.count or self._row.chips
        stand_in.install(devices.system_of(self._row, replicas=1, names=()))
        capture.pretend(cores)
        capture.watch(self._observations, self.locate, self._may_end)
        self._reach("TensorFlow imported")

    def locate(self, traceback: Any) -> tuple[str, int]:
        """Return file and line of the program's innermost frame in a traceback of TensorFlow; ("", 0) if there is none."""
        for frame in reversed(list(traceback or ())):
            if frame.filename.startswith(self._work):
                return frame.filename[len(self._work) :], frame.lineno
        return "", 0

    def _may_end(self, observations: Observations) -> bool:
        if observations.calls == 1:
            self._reach("step traced")
        late = observations.traced_s is not None and time.monotonic() - observations.traced_s > _MOST_S
        return observations.calls >= (_LEAST_CALLS if late else _MOST_CALLS)

    def _program(self, payload: Payload) -> tuple[str, StoppedBy]:
        """Run the program; return why it ended before its steps were traced, and the cause in one word; "" if it did not."""
        without = "without a training step: no fit, and no strategy.run"
        try:
            bootstrap.call(payload, Path(self._work))
        except SystemExit as left:
            if self._traced():
                return "", ""
            if left.code in (None, 0):
                return f"The program ended {without}.", "no step"
            return f"The program exited with {left.code!r} before its first training step.", "program"
        except BaseException as error:
            if type(error).__name__ == "ProgramEndsError":
                return "", ""
            problem = self._failed(error)
            return problem, "program" if problem else ""
        return ("", "") if self._traced() else (f"The program ended {without}.", "no step")

    def _traced(self) -> bool:
        return any(step.trains for step in self._observations.steps)

    def _failed(self, error: BaseException) -> str:
        path, line = self._location_of(error)
        text = f"{type(error).__name__}: {rules.cause(str(error))}"
        finding = rules.failure(type(error).__name__, str(error), path, line) if path else None
        if finding is not None:
            self._report = replace(self._report, findings=(*self._report.findings, finding))
            return ""
        if self._traced():
            return ""  # it computes with zeros by now, so this may not be its own failure
        where = f" in {location(path, line)}" if path else ""
        return f"The program failed{where} before its first training step was known: {text[:_MAX_MESSAGE]}"

    def _location_of(self, error: BaseException) -> tuple[str, int]:
        frames = []
        step = error.__traceback__
        while step is not None:
            frames.append((step.tb_frame.f_code.co_filename, step.tb_lineno))
            step = step.tb_next
        # TensorFlow rewrites functions; its message has the original lines.
        frames += [(name, int(line)) for name, line in _IN_USER_CODE.findall(str(error))]
        own = [(name[len(self._work) :], line) for name, line in frames if name.startswith(self._work)]
        return own[-1] if own else ("", 0)

    def _study(self, observations: Observations) -> None:
        from . import steps

        self._report = replace(self._report, programs=steps.programs(observations.steps))
        fed = rules.input_in_python(steps.pipeline(observations, self.locate))
        findings = [*self._report.findings, *steps.recompiled(observations.steps), *fed]
        self._report = replace(self._report, findings=tuple(findings))
        for same in steps.by_line(observations.steps).values():
            self._inspect(same[0], observations)
        self._reach("done")

    def _inspect(self, step: TracedStep, observations: Observations) -> None:
        from . import steps

        specs, batch, is_known = steps.shapes(step, observations)
        graph = steps.traced(step, specs)
        ops = steps.operations(graph, self.locate)
        findings = rules.check(ops, strict=self._request.strict)
        host_calls = any(finding.rule == "host-call" for finding in findings)
        if host_calls:
            with steps.without_host_calls():
                graph = step.build(specs)
        compilation = steps.Compiled()
        if not any(finding.level == "refused" and finding.rule != "float64" for finding in findings):
            compilation = steps.compiled(graph, specs, self._request.dumps)
        if compilation.peak is not None:
            self._reach("step compiled")
        refused = rules.unsupported(compilation.refusal, ops)
        about = advice.StepFacts(step, batch, is_known, steps.uneven(step, observations, self._report.replicas))
        before = self._report.step_bytes or 0
        # A finding outside of the program's files is reported at the line that runs the step.
        placed = [f if f.path else replace(f, path=step.path, line=step.line) for f in (*findings, *refused)]
        report = replace(self._report, findings=(*self._report.findings, *placed, *advice.feeding(about)))
        if compilation.peak is None or compilation.peak >= before:
            report = self._sized(report, about, compilation, steps.state_bytes(graph))
        # A step with summaries holds their writer even if nothing is written, and the compiler refuses that.
        if compilation.refusal and not refused and not report.stopped and not host_calls:
            report = replace(
                report, stopped=f"The compiler stopped: {compilation.refusal[:_MAX_MESSAGE]}", stopped_by="podlift"
            )
        self._report = report

    def _sized(self, report: PreflightReport, about: advice.StepFacts, compilation: Any, state: int) -> PreflightReport:
        from . import sizes

        cores = report.replicas
        per_chip = self._row.memory_gib
        memory = None if per_chip is None else int(per_chip * (1 << 30) * self._row.chips // cores)
        largest = None
        if compilation.peak is not None and memory is not None and about.batch:
            # Gradients are as large as the trained variables, so at most as large as the state.
            largest = sizes.largest_batch(
                batch=about.batch, state=state, peak=max(compilation.peak, state + 1), memory=memory
            )
        findings = [
            *report.findings,
            *advice.padding(about, compilation.layers),
            *advice.memory(about, compilation.peak, memory, largest, cores),
        ]
        return replace(
            report,
            findings=tuple(findings),
            batch=about.batch,
            state_bytes=state,
            step_bytes=compilation.peak,
            memory_bytes=memory,
            largest_batch=largest,
            layers=compilation.layers[:20],
        )


if __name__ == "__main__":
    # By the real name: from now on `sdk`, as this was started, may be the project's own.
    from . import child

    child.main(sys.argv[1])
