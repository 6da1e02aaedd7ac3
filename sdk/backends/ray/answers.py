"""What a cluster says of a job that has ended, in the words of `records.verdicts`. Pure."""

from __future__ import annotations

from ...records.verdicts import CANCELLED, SUCCEEDED, ServiceAnswer, failed
from ...status import Failure, Reason

# Exit codes of a driver that a signal ended, whatever it printed.
_FROM_OUTSIDE = (137, 143)
_PREFIX = "podlift: "


def of_ended(
    job: str,
    *,
    code: int | None = None,
    status: str = "",
    problem: tuple[Reason, str] | None = None,
    last_output: str = "",
) -> ServiceAnswer:
    """Return the answer. The clocks of the cluster and of those who cancel runs may differ: it has no time.

    Args:
        job: the job's name.
        code: the exit code of the first task's agent, or that of the agent that ended the job; None if it is not known.
        status: the cluster's own state of the job, "" if it is not known.
        problem: why the driver has ended the job, and how that counts.
        last_output: the last lines of the container that ended the job.
    """
    if code == 0 or (code is None and status == "SUCCEEDED"):
        return ServiceAnswer(job="ended", end=SUCCEEDED)
    if status == "STOPPED":
        return ServiceAnswer(job="ended", end=CANCELLED, knows="decision")
    if problem is not None:
        failure = Failure(task="", message=problem[1], traceback=last_output)
        return ServiceAnswer(job="ended", end=failed(problem[0], failure), knows="decision")
    said = [line for line in last_output.splitlines() if line.startswith(_PREFIX)]
    if said and code not in _FROM_OUTSIDE:
        # podlift gave up before it started the program.
        failure = Failure(task="", message=said[-1].removeprefix(_PREFIX))
        return ServiceAnswer(job="ended", end=failed(Reason.REFUSED, failure))
    how = "" if code is None else f" with exit code {code}"
    message = f"The job {job} ended{how}, and no task says why."
    failure = Failure(task="", message=message, traceback=last_output)
    return ServiceAnswer(job="ended", end=failed(Reason.INFRASTRUCTURE, failure))
