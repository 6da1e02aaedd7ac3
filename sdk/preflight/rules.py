"""The operations in a training step that a TPU refuses, or that are slow there. Pure: operations are plain data.

Supported operations: https://cloud.google.com/tpu/docs/tensorflow-ops. The compiler pads dynamic shapes by default in
TensorFlow 2.21 (`RunOptions.experimental_enable_dynamic_batch_size`, `XLAOptions.enable_xla_dynamic_padder`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ..planning.preflight_findings import Level, PreflightFinding

Shape = tuple[int | None, ...] | None

_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_HOST_CALLS = {"PrintV2", "StringFormat"}
_SUMMARIES = (
    "WriteSummary", "WriteScalarSummary", "WriteHistogramSummary", "WriteImageSummary", "WriteRawProtoSummary",
)  # fmt: skip
# Ends `with writer.as_default():`; the summary before it is reported.
_FLUSHES = ("FlushSummaryWriter",)
_LOOKUP = ("LookupTable", "HashTable", "MutableHashTable", "InitializeTable", "AnonymousHashTable", "AnonymousMutable")
_HOST_ONLY = (
    "ReadFile", "WriteFile", "MatchingFiles", "DecodeRaw", "DecodePaddedRaw", "DecodeJpeg", "DecodePng", "DecodeImage",
    "DecodeBmp", "DecodeGif", "DecodeWebP", "DecodeCSV", "ParseExample", "ParseSingleExample", "ParseSequenceExample",
    "DecodeProto", "EncodeJpeg", "EncodePng", "SaveV2", "RestoreV2", "MergeV2Checkpoints", "IteratorGetNext",
)  # fmt: skip
_DYNAMIC = {
    "Where": "as many results as there are true values",
    "Unique": "as many results as there are different values",
    "UniqueV2": "as many results as there are different values",
    "UniqueWithCounts": "as many results as there are different values",
    "UniqueWithCountsV2": "as many results as there are different values",
    "DynamicPartition": "parts of a length that the data decides",
    "NonMaxSuppressionV3": "as many boxes as remain",
    "NonMaxSuppressionV5": "as many boxes as remain",
    "SparseToDense": "a size that the data decides",
}
_ARITHMETIC = {
    "MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Mul", "AddV2", "Add", "AddN", "Sub", "Sum", "Mean", "Prod", "Cumsum",
    "FloorMod", "FloorDiv", "RealDiv", "Pow", "Maximum", "Minimum", "Max", "Min", "Square", "TopKV2", "LeftShift", "RightShift",
}  # fmt: skip
# The functions that these call are inspected themselves.
_CALLS = {"If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"}
# These operations never compute with text: a TPU's compiler leaves out the message of an assertion.
_SILENT = {"Const", "NoOp", "Assert", "Placeholder", "Identity", *_CALLS}
_LARGE_CONSTANT = 1 << 20
# Below this size an operation in 64 bits costs nothing noticeable.
_MANY = 1 << 10


@dataclass(frozen=True, kw_only=True)
class StepOp:
    type: str  # TensorFlow's name of it
    name: str  # in its graph
    path: str  # the program's file that created it, "" if none did
    line: int  # in that file
    inputs: Sequence[tuple[str, Shape]] = ()  # type and shape of each tensor
    outputs: Sequence[tuple[str, Shape]] = ()
    on_host: bool = False  # True for a host call with soft placement, and for operations that only serve one


@dataclass(frozen=True)
class _Rule:
    level: Level
    name: str
    what: Callable[[StepOp], str]  # how an operation breaks the rule, "" if it does not
    why: str
    instead: str

    def finding(self, op: StepOp) -> PreflightFinding | None:
        what = self.what(op)
        if not what:
            return None
        return PreflightFinding(op.path, op.line, self.level, self.name, what, self.why, self.instead)


def check(ops: Iterable[StepOp], *, strict: bool = False) -> list[PreflightFinding]:
    """Return the findings about the operations of one replica's step; `strict` refuses dynamic shapes too."""
    findings = []
    for op in ops:
        rules = (_ON_HOST,) if op.on_host else _RULES
        finding = next((finding for rule in rules if (finding := rule.finding(op))), None)
        if finding is not None:
            findings.append(
                replace(finding, level="refused") if strict and finding.rule == "dynamic-shape" else finding
            )
    # TensorFlow itself counts ragged and masked rows in 64 bits.
    dynamic = {(finding.path, finding.line) for finding in findings if finding.rule == "dynamic-shape"}
    return [finding for finding in findings if finding.rule != "int64" or (finding.path, finding.line) not in dynamic]


def _host_call(op: StepOp) -> str:
    if op.type in _SUMMARIES:
        return "a summary in the step"
    return "tf.print in the step" if op.type in _HOST_CALLS else ""


def _strings(op: StepOp) -> str:
    text = "string" in {dtype for dtype, _ in (*op.inputs, *op.outputs)}
    return f"text in the step ({op.type})" if text and op.type not in _SILENT else ""


def _double(op: StepOp) -> str:
    double = {"float64", "complex128"} & {dtype for dtype, _ in op.outputs}
    return f"double precision in the step ({op.type})" if double and op.type not in ("Const", "Placeholder") else ""


def _dynamic(op: StepOp) -> str:
    result = "rows of different lengths" if op.type.startswith("Ragged") else _DYNAMIC.get(op.type)
    return f"{op.type} in the step has {result}" if result else ""


def _long(op: StepOp) -> str:
    large = any(dtype == "int64" and _size(shape) >= _MANY for dtype, shape in op.outputs)
    return f"arithmetic in 64 bits ({op.type})" if large and op.type in _ARITHMETIC else ""


def _constant(op: StepOp) -> str:
    size = sum(_size(shape) * _width(dtype) for dtype, shape in op.outputs)
    large = op.type == "Const" and size >= _LARGE_CONSTANT
    return f"{size / 1e6:.0f} MB of data are a constant of the step" if large else ""


def _size(shape: Shape) -> int:
    return 0 if shape is None else math.prod(1 if side is None else side for side in shape)


def _width(dtype: str) -> int:
    digits = "".join(letter for letter in dtype if letter.isdigit())
    return max(1, int(digits or 8) // 8)


_HOST_INSTEAD = "return the value from the step, and print or write it outside, not after every step"
_ON_HOST = _Rule(
    "warning", "host-call", _host_call,
    "the TPU waits for its host in every step; after tf.config.set_soft_device_placement(False) it refuses", _HOST_INSTEAD,
)  # fmt: skip
# The first one that applies counts.
_RULES = (
    _Rule(
        "refused", "python-code",
        lambda op: "Python code in the step (tf.py_function, tf.numpy_function)" if op.type in _PYTHON else "",
        "a TPU runs compiled programs only", "TensorFlow operations, or do it in the input pipeline (dataset.map)",
    ),
    _Rule(
        "refused", "lookup-table",
        lambda op: f"a lookup table in the step ({op.type})" if op.type.startswith(_LOOKUP) else "",
        "tables live on the host", "look words up in the input pipeline (dataset.map), and feed numbers",
    ),
    _Rule(
        "refused", "host-call", _host_call,
        "after tf.config.set_soft_device_placement(False) a step cannot call its host", _HOST_INSTEAD,
    ),
    _Rule(
        "refused", "host-only", lambda op: f"{op.type} in the step" if op.type.startswith(_HOST_ONLY) else "",
        "only the host reads and decodes files", "do it in the input pipeline (dataset.map)",
    ),
    _Rule(
        "refused", "strings", _strings,
        "a TPU has no type for text", "turn text into numbers in the input pipeline (dataset.map)",
    ),
    _Rule(
        "refused", "float64", _double, "a TPU computes in bfloat16 and float32",
        "tf.cast(x, tf.float32) in the input pipeline; NumPy's arrays are float64 by default",
    ),
    _Rule(
        "warning", "dynamic-shape", _dynamic,
        "the compiler pads it to the largest possible size, and computes the padding too",
        "a mask: tf.where(condition, x, 0) with three arguments, or padding in the input pipeline",
    ),
    _Rule(
        "warning", "int64", _long, "a TPU needs several operations in 32 bits for it", "tf.cast(x, tf.int32)",
    ),
    _Rule(
        "warning", "constant", _constant,
        "they are part of the compiled program, and sent again whenever it changes",
        "feed them by a tf.data.Dataset, or keep them in a variable made inside strategy.scope()",
    ),
)  # fmt: skip


def host_calls() -> frozenset[str]:
    """Return the types of operations that a TPU leaves to its host, with results that no other operation needs."""
    return frozenset({*_HOST_CALLS, *_SUMMARIES, *_FLUSHES})


_IN_INPUT = _Rule(
    "warning", "python-input",
    lambda op: "Python produces the data (from_generator, py_function, numpy_function)" if op.type in _PYTHON else "",
    "one core of the host produces it element by element, while all chips wait",
    "TensorFlow operations in dataset.map with num_parallel_calls, or data prepared as TFRecords",
)  # fmt: skip
_UNSUPPORTED = _Rule(
    "refused", "unsupported", lambda op: f"{op.type} in the step", "the compiler does not support this operation",
    "other operations, or do it in the input pipeline (dataset.map)",
)  # fmt: skip


def input_in_python(ops: Iterable[StepOp]) -> list[PreflightFinding]:
    """Report Python in the operations of an input pipeline."""
    return [finding for op in ops if (finding := _IN_INPUT.finding(op))]


def unsupported(message: str, ops: Iterable[StepOp]) -> list[PreflightFinding]:
    """Return the operations in "Detected unsupported operations when trying to compile graph ...: Type (reason), ..."."""
    head, _, rest = message.partition("XLA_CPU_JIT:")
    if "unsupported operations" not in head:
        return []
    named = [op for op in ops if f"{op.type} (" in rest and not any(rule.finding(op) for rule in _RULES)]
    return [finding for op in named if (finding := _UNSUPPORTED.finding(op))]


# --- Errors of the program -------------------------------------------------------------------------------------

_CONTROL = re.compile(r"Iterating over a symbolic|as a Python `?bool`?|cannot be iterated over in")
_NUMBER = re.compile(
    r"numpy\(\) is only available|to a numpy array|has no attribute 'numpy'|(float|int)\(\) argument|"
    r"converted to a Python|KerasTensor cannot be used|__(float|int|array|index)__"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = re.compile(r"(Exception encountered when calling|Arguments received by|in user code:|File \"|•|\^+$|~)")


def cause(message: str) -> str:
    """Return the line of an error's message that names the cause.

    Keras puts the failed call above that line, and the arguments of the call below it; TensorFlow puts a traceback there.
    """
    lines = [line.strip() for line in _COLOUR.sub("", message).splitlines() if line.strip()]
    if not lines:
        return ""
    if lines[0].startswith("in user code:"):
        raised = [line for line in lines if re.match(r"[A-Za-z_.]*(Error|Exception)\b.*:", line)]
        return raised[-1] if raised else lines[-1]
    return next((line for line in lines if not _FRAME.match(line)), lines[0])


def failure(kind: str, message: str, path: str, line: int) -> PreflightFinding | None:
    """Return the finding for such an error; None for any other."""
    if kind == "OperatorNotAllowedInGraphError" or (kind == "TypeError" and _CONTROL.search(message)):
        return PreflightFinding(
            path, line, "refused", "python-control", "Python's if, for or while depends on a tensor of the step",
            "a compiled step is the same for all data, on any hardware",
            "tf.where, tf.cond and tf.while_loop (keras.ops has them too), or a loop over a Python number",
        )  # fmt: skip
    if kind in ("TypeError", "AttributeError", "NotImplementedError", "ValueError") and _NUMBER.search(message):
        return PreflightFinding(
            path, line, "refused", "python-value", "the step needs a number in Python (.numpy(), float(), NumPy)",
            "tensors have no values while a step is compiled, on any hardware",
            "TensorFlow operations on the tensor; return it from the step to see it in Python",
        )  # fmt: skip
    return None
