"""A library in the place of NVIDIA's, for processes that a test starts: one GPU with its use in a file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

# The file's content is the use in percent.
_SOURCE = """
#include <stdio.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)1; return index ? 2 : 0; }
int nvmlDeviceGetHandleByUUID(const char *name, void **handle) { return 6; }
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *use) {
    FILE *file = fopen("%s", "r");
    int read = file ? fscanf(file, "%%u", use) : 0;
    if (file) fclose(file);
    return read == 1 ? 0 : 3;
}
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    memory[0] = 100; memory[1] = 90; memory[2] = 10;
    return 0;
}
"""


def one_gpu(folder: Path, use: int) -> tuple[dict[str, str], Path]:
    """Build the library; return the variables of a process that finds it, and the file with the use of its GPU."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "use"
    file.write_text(str(use))
    (folder / "nvml.c").write_text(_SOURCE % file)
    command = [compiler, "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(folder / "nvml.c")]
    subprocess.run(command, check=True, capture_output=True)
    return {"LD_LIBRARY_PATH": str(folder)}, file
