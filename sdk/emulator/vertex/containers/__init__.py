"""The container runtime of emulated jobs: a small process per job that runs its replicas, and its client in the emulator.

`runtime` imports nothing of podlift: it is started by its folder, once for every job.
"""
