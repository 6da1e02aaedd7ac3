"""The requirements of the project in the current folder, or their mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

import sdk
from sdk.packaging.requirements.read import Requirements, gather


def read(setting: str | tuple[str, ...] = "auto") -> Requirements:
    return gather(setting, Path.cwd())


def refused(setting: str | tuple[str, ...] = "auto") -> list[str]:
    with pytest.raises(sdk.InputError) as caught:
        read(setting)
    return list(caught.value.problems)
