"""Shows a secret in the output in several ways, and fails with it."""

import os
import subprocess
import sys

value = os.environ["API_KEY"]
print("backwards", value[::-1])
sys.stdout.write("split " + value[:4])
sys.stdout.flush()
sys.stdout.write(value[4:] + "\n")
sys.stdout.flush()
subprocess.run(["echo", "a child prints", value], check=True)
raise RuntimeError("refused: " + value)
