"""Lets the process die between its claim on a second job and the request for it."""

import os
import signal

from sdk.backends.vertex.client import JobClient

create, calls = JobClient.create, []


def dying(self, region, body):
    calls.append(region)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return create(self, region, body)


JobClient.create = dying
