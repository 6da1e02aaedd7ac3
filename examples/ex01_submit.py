"""Submit a script on two local workers from Python, and use what it leaves. Run: python examples/ex01_submit.py"""

from pathlib import Path

import sdk

if __name__ == "__main__":
    script = Path(__file__).parent.parent / "jobs" / "digits" / "train.py"
    run = sdk.submit(script, args={"epochs": 2}, workers=2, name="example")
    print("started", run.url)
    result = run.result(timeout_s=300)
    print({name: round(value, 3) for name, value in result.metrics.items()})
    print("model:", sorted(path.name for path in Path(result.model_dir).iterdir()))
