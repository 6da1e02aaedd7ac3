#!/usr/bin/env python3
"""Compares what the Dockerfile of training images pins with PyPI and Docker Hub. --write takes newer pins, with the date.

A registry that cannot be reached from here leaves its pins as they are, and is named. Lines "Pinned by hand" are only reported.
Exit code 1 if something is newer and was not written.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

REPO = Path(__file__).resolve().parent.parent
DOCKERFILE = REPO / "sdk" / "backends" / "vertex" / "images" / "Dockerfile"
_BASE = re.compile(r"^FROM (?P<name>[\w./-]+):(?P<tag>[\w.-]+)@(?P<digest>sha256:[0-9a-f]{64})", re.MULTILINE)
_PIN = re.compile(r"(?P<name>[A-Za-z][\w-]*)(?P<extra>\[[\w,-]+\])?==(?P<version>[\w.]+)")
_DATE = re.compile(r"(?<=Pinned on )\d{4}-\d\d-\d\d")
_BY_HAND = "Pinned by hand"
_TIMEOUT_S = 20


class Answer(NamedTuple):
    """The pins that are newer, what cannot be known from here, and the Dockerfile with the newer pins."""

    newer: list[str]
    unknown: list[str]
    text: str


def compare(text: str, newest: Callable[[str], str], digest: Callable[[str, str], str], today: str) -> Answer:
    """Compare each block of the Dockerfile. `newest` and `digest` ask a registry, and return "" if they cannot."""
    newer, unknown, blocks = list[str](), list[str](), list[str]()
    for block in re.split(r"(?<=\n)\n", text):
        changed = block
        for base in _BASE.finditer(block):
            found = digest(base["name"], base["tag"])
            if not found:
                unknown.append(f"{base['name']}:{base['tag']} (Docker Hub cannot be reached)")
            elif found != base["digest"]:
                newer.append(f"{base['name']}:{base['tag']}: {found}")
                changed = changed.replace(base["digest"], found)
        lines = [line for line in block.splitlines() if line.startswith("RUN pip install")]
        for pin in (pin for line in lines for pin in _PIN.finditer(line)):
            found = newest(pin["name"])
            if not found:
                unknown.append(f"{pin['name']} (PyPI cannot be reached)")
            elif found != pin["version"]:
                hand = _BY_HAND in block and pin["name"] != "google-cloud-storage"
                newer.append(f"{pin['name']}: {found}, here {pin['version']}{', by hand' if hand else ''}")
                if not hand:
                    changed = changed.replace(pin[0], f"{pin['name']}{pin['extra'] or ''}=={found}")
        blocks.append(_DATE.sub(today, changed) if changed != block else block)
    return Answer(list(dict.fromkeys(newer)), list(dict.fromkeys(unknown)), "\n".join(blocks))


def newest_on_pypi(package: str) -> str:
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.match(r"\S+ \((?P<version>[\w.]+)\)", done.stdout)
    return found["version"] if found else ""


def digest_on_docker_hub(name: str, tag: str) -> str:
    name = name if "/" in name else f"library/{name}"
    kinds = ", ".join(
        f"application/vnd.{each}+json" for each in ("oci.image.index.v1", "docker.distribution.manifest.list.v2")
    )
    try:
        about = f"https://auth.docker.io/token?service=registry.docker.io&scope=repository:{name}:pull"
        with urlopen(about, timeout=_TIMEOUT_S) as answer:
            token = json.load(answer)["token"]
        headers = {"Authorization": f"Bearer {token}", "Accept": kinds}
        url = f"https://registry-1.docker.io/v2/{name}/manifests/{tag}"
        with urlopen(Request(url, headers=headers, method="HEAD"), timeout=_TIMEOUT_S) as answer:
            return answer.headers["docker-content-digest"] or ""
    except OSError:
        return ""


def main() -> int:
    before = DOCKERFILE.read_text()
    found = compare(before, newest_on_pypi, digest_on_docker_hub, datetime.now(timezone.utc).date().isoformat())
    for each in found.newer:
        print(f"newer: {each}")
    for each in found.unknown:
        print(f"not known: {each}")
    if "--write" in sys.argv[1:]:
        DOCKERFILE.write_text(found.text)
        return 0
    return int(found.text != before)


if __name__ == "__main__":
    sys.exit(main())
