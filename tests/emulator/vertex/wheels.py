"""Wheels and source archives, made without any tool of packaging."""

from __future__ import annotations

import zipfile
from pathlib import Path


def wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    about = f"{name}-{version}.dist-info"
    files = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n".encode(),
        **files,
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"]).encode()
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        for path, data in files.items():
            made.writestr(path, data)
    return Path(made.filename or "")


def module(version: str) -> bytes:
    return f"import sys\nVERSION = {version!r}\ndef main(): print(*sys.argv[1:], VERSION)\n".encode()
