"""Buckets without a server, in a separate thread, as the emulator has them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sdk.clock import SystemClock
from sdk.emulator.gcs.errors import StorageApiError
from sdk.emulator.gcs.state import StorageState
from sdk.emulator.vertex.bucket_fs import BucketFs, StateThread


class Stored:
    def __init__(self, state: StorageState, thread: StateThread, view: BucketFs) -> None:
        self.state, self.thread, self.view = state, thread, view

    def bucket(self, name: str) -> None:
        self.thread.run(lambda: self.state.create_bucket(name, {}))

    def put(self, name: str, data: bytes, bucket: str = "bucket") -> None:
        writer = self.state.blobs.writer()
        writer.write(data)
        blob = writer.finish()
        self.thread.run(lambda: self.state.commit(bucket, name, blob, {}))

    def get(self, name: str, bucket: str = "bucket") -> bytes | None:
        def read() -> bytes | None:
            try:
                return self.state.blobs.path(self.state.get(bucket, name).blob).read_bytes()
            except StorageApiError:
                return None

        return self.thread.run(read)

    def delete(self, name: str, bucket: str = "bucket") -> None:
        self.thread.run(lambda: self.state.delete(self.state.get(bucket, name), permanently=False))

    def names(self) -> list[str]:
        return sorted(name for _, name, _, _ in self.thread.run(self.state.live_objects))


@contextmanager
def serving(home: Path) -> Iterator[Stored]:
    loop = asyncio.new_event_loop()
    runner = threading.Thread(target=loop.run_forever)
    runner.start()
    try:
        thread = StateThread(loop)
        state = thread.run(lambda: StorageState(home / "data", SystemClock()))
        view = BucketFs(state, thread, home / "view")
        stored = Stored(state, thread, view)
        stored.bucket("bucket")
        yield stored
        view.close()
        thread.run(state.close)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        runner.join()
        loop.close()
