"""Cancel requests in a run's folder, and the uploaders that a client has started."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

from sdk.backends.folder import request_cancel
from sdk.backends.local import uploader
from sdk.job.layout import RunPaths
from sdk.storage import posix


def test_a_cancel_request_comes_after_all_others_also_if_one_is_missing(monkeypatch, tmp_path: Path) -> None:
    paths, lists = RunPaths(str(tmp_path / "digits-aaaaaa")), iter(range(100))
    list_names = posix.list_names

    def counted(folder: str) -> list[str]:
        assert next(lists, None) is not None, "it never ends"
        return list_names(folder)

    monkeypatch.setattr(posix, "list_names", counted)
    for _ in range(2):
        request_cancel(paths, b"{}")
    os.unlink(paths.cancel_request(1))
    request_cancel(paths, b"{}")
    Path(paths.control, "notes.txt").write_text("x")
    request_cancel(paths, b"{}")
    names = [f"{number:06d}.cancel.json" for number in (2, 3, 4)]
    assert list_names(paths.control) == [*names, "notes.txt"]


def test_an_uploader_that_another_thread_starts_meanwhile_is_not_forgotten(monkeypatch, tmp_path: Path) -> None:
    plans = {name: SimpleNamespace(paths=RunPaths(str(tmp_path / name))) for name in ("ended", "one", "other")}
    begun: list[str] = []

    class Process:
        def __init__(self, command: list[str], **_: object) -> None:
            self.args, self._name = command, os.path.basename(command[-1])

        def poll(self) -> int | None:
            # The other thread starts its uploader while this one looks for uploaders that have ended.
            if self._name == "ended" and not begun:
                begun.append("other")
                uploader.start(plans["other"])
            return 0 if self._name == "ended" else None

    monkeypatch.setattr(uploader, "_uploaders", [])
    monkeypatch.setattr(uploader.spawn, "spawn", Process)
    for name in ("ended", "one"):
        uploader.start(plans[name])
    assert [name for name in plans if uploader.is_active(plans[name].paths)] == ["one", "other"]
