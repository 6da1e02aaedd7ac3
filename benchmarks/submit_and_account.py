"""Submits a program as `podlift submit` does, and prints the CPU seconds of everything that it started.

Usage: `python -m benchmarks.submit_and_account PROGRAM WORKERS [VARIABLE ...]`, the variables being passed on

The supervisor belongs to nobody, so this process makes itself the one that orphans fall to, and asks the kernel.
"""

import ctypes
import os
import resource
import sys

import sdk

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Let detached processes that this one has started become its children when their parents end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def cpu_of_all() -> float:
    """Wait for all children, and return the CPU seconds of this process and of everything that it has started."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


if __name__ == "__main__":
    adopt_orphans()
    program, workers, *variables = sys.argv[1:]
    job = sdk.Job(
        program,
        env={name: sdk.FromCaller() for name in variables},
        resources=sdk.Resources(workers=int(workers)),
        code=sdk.Code(project=os.path.dirname(program)),
    )
    run = sdk.submit(job, local_start=os.environ.get("BENCHMARK_START", "auto"))
    run.result(600)
    print(cpu_of_all())
