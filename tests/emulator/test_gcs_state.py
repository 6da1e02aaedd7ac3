"""The promises of the stored state to its callers, without any server."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdk.clock import SystemClock
from sdk.emulator.gcs.state import StorageState


def test_bytes_stay_until_the_transaction_that_removes_their_object_is_committed(tmp_path: Path) -> None:
    state = StorageState(tmp_path / "data", SystemClock())
    state.create_bucket("bucket", {})
    with state.blobs.writer() as writer:
        writer.write(b"old")
        record = state.commit("bucket", "x", writer.finish(), {})
    bytes_of_it = state.blobs.path(record.blob)

    def removed() -> None:
        state.delete(record, permanently=False)
        assert state.find("bucket", "x") is None

    with pytest.raises(KeyboardInterrupt), state.transaction():
        removed()
        raise KeyboardInterrupt
    # As after a kill: the object is there again, with its bytes.
    assert state.find("bucket", "x") == record
    assert bytes_of_it.read_bytes() == b"old"
    with state.transaction():
        removed()
    assert not bytes_of_it.exists()
    state.close()
