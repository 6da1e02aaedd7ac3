"""The cloud on this machine: servers that answer as the real ones do, on loopback only, and fail when they are told to."""
