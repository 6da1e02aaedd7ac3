"""The container runtime of emulated jobs: a small process per job that runs its replicas, and its client in the emulator.

`runtime` and `root_fs` import nothing of podlift: they are started by their folder, once for every job.
"""
