"""Opens many connections to a port with unfinished requests, as another user, and holds them until its stdin ends.

Usage: `python half_open.py PORT COUNT`. It connects again whenever it was cut off.
"""

import os
import resource
import select
import socket
import sys
from contextlib import suppress

port, count = int(sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 100), hard))
if os.geteuid() == 0:
    os.setuid(65534)


def opened() -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(("127.0.0.1", port))
    with suppress(OSError):
        made.send(b"POST / HTTP/1.1\r\n")
    return made


def is_cut(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


held = [opened() for _ in range(count)]
print("open", flush=True)
while not select.select([sys.stdin], [], [], 0.5)[0]:
    for at in [at for at, each in enumerate(held) if is_cut(each)][:100]:
        held[at].close()
        held[at] = opened()
