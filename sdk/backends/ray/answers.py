"""The answer of a cluster about a job that has ended, in the words of `records.verdicts`. Pure."""

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
    """Return the answer. It has no time, because the clocks of the cluster and of the clients that cancel runs may differ.

    Args:
        job: the job's name.
        code: the exit code of the first task's agent, or of the agent that ended the job; None if unknown.
        status: the cluster's own state of the job, "" if unknown.
        problem: the reason that counts, and the message, if the driver ended the job.
        last_output: the last lines of the container that ended the job.
    """
    if code == 0 or (code is None and status == "SUCCEEDED"):
        return ServiceAnswer(job="ended", end=SUCCEEDED)
    if status == "STOPPED":
        return ServiceAnswer(job="ended", end=CANCELLED, knows="decision")
    if problem is not None:
        failure = Failure(task="", message=problem[1], traceback=last_output)
        return ServiceAnswer(job="ended", end=failed(problem[0], failure), knows="decision")
    messages = [line for line in last_output.splitlines() if line.startswith(_PREFIX)]
    if messages and code not in _FROM_OUTSIDE:
        # podlift gave up before it started the program.
        failure = Failure(task="", message=messages[-1].removeprefix(_PREFIX))
        return ServiceAnswer(job="ended", end=failed(Reason.REFUSED, failure))
    how = "" if code is None else f" with exit code {code}"
    message = f"The job {job} ended{how}, and no task recorded the cause."
    failure = Failure(task="", message=message, traceback=last_output)
    return ServiceAnswer(job="ended", end=failed(Reason.INFRASTRUCTURE, failure))
