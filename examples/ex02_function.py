"""Submit a function of a module; its value comes back. Run: python examples/ex02_function.py"""

import sdk


def train(epochs: int, rate: float) -> dict:
    ctx = sdk.context()
    weight = 0.0
    for step in range(epochs):
        weight += rate * (1.0 - weight)
        ctx.report({"distance": 1.0 - weight}, step=step + 1)
    return {"weight": weight, "task": ctx.task}


if __name__ == "__main__":
    job = sdk.Job("ex02_function:train", args={"epochs": 20, "rate": 0.2})
    print(sdk.submit(job).result(timeout_s=60).value)
