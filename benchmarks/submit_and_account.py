"""Submits a program on two workers as `podlift submit` does, and prints the CPU seconds of everything that it started.

The supervisor belongs to nobody, so this process makes itself the one that orphans fall to, and asks the kernel.
"""

import ctypes
import os
import resource
import sys

import sdk

PR_SET_CHILD_SUBREAPER = 36

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    job = sdk.Job(
        sys.argv[1],
        env={"FIRST_STEP_FILE": sdk.FromCaller()},
        resources=sdk.Resources(workers=2),
        code=sdk.Code(project=os.path.dirname(sys.argv[1])),
    )
    run = sdk.submit(job)
    run.result(300)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(sum(usage.ru_utime + usage.ru_stime for usage in used))
