"""What operations of a training step a TPU refuses or does at a price. Pure: operations go in as plain data.

What a TPU's compiler knows: https://cloud.google.com/tpu/docs/tensorflow-ops. That it pads dynamic shapes by itself is the
default of TensorFlow 2.21 (`RunOptions.experimental_enable_dynamic_batch_size`, `XLAOptions.enable_xla_dynamic_padder`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..planning.preflight_findings import Finding, Level

Shape = tuple[int | None, ...] | None

_PYTHON = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
_HOST_CALLS = {"PrintV2", "StringFormat"}
_SUMMARIES = (
    "WriteSummary",
    "WriteScalarSummary",
    "WriteHistogramSummary",
    "WriteImageSummary",
    "WriteRawProtoSummary",
)
# What ends `with writer.as_default():`; the summary before it is reported.
_FLUSHES = ("FlushSummaryWriter",)
_LOOKUP = ("LookupTable", "HashTable", "MutableHashTable", "InitializeTable", "AnonymousHashTable", "AnonymousMutable")
_HOST_ONLY = (
    *(
        "ReadFile",
        "WriteFile",
        "MatchingFiles",
        "DecodeRaw",
        "DecodePaddedRaw",
        "DecodeJpeg",
        "DecodePng",
        "DecodeImage",
    ),
    *(
        "DecodeBmp",
        "DecodeGif",
        "DecodeWebP",
        "DecodeCSV",
        "ParseExample",
        "ParseSingleExample",
        "ParseSequenceExample",
    ),
    *("DecodeProto", "EncodeJpeg", "EncodePng", "SaveV2", "RestoreV2", "MergeV2Checkpoints", "IteratorGetNext"),
)
_DYNAMIC = {
    "Where": "as many results as there are true values",
    "Unique": "as many results as there are different values",
    "UniqueV2": "as many results as there are different values",
    "UniqueWithCounts": "as many results as there are different values",
    "UniqueWithCountsV2": "as many results as there are different values",
    "DynamicPartition": "parts of a length that the data decides",
    "NonMaxSuppressionV3": "as many boxes as are left",
    "NonMaxSuppressionV5": "as many boxes as are left",
    "SparseToDense": "a size that the data decides",
}
_ARITHMETIC = {
    *(
        "MatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Einsum",
        "Mul",
        "AddV2",
        "Add",
        "AddN",
        "Sub",
        "Sum",
        "Mean",
        "Prod",
        "Cumsum",
    ),
    *(
        "FloorMod",
        "FloorDiv",
        "RealDiv",
        "Pow",
        "Maximum",
        "Minimum",
        "Max",
        "Min",
        "Square",
        "TopKV2",
        "LeftShift",
        "RightShift",
    ),
}
# Text that is never computed with: the message of an assertion, which a TPU's compiler leaves out.
# Of what calls functions, the functions are looked at.
_CALLS = {"If", "StatelessIf", "PartitionedCall", "StatefulPartitionedCall"}
_SILENT = {"Const", "NoOp", "Assert", "Placeholder", "Identity", *_CALLS}
_LARGE_CONSTANT = 1 << 20
# An operation of 64 bits on fewer numbers than that costs nothing that anybody would notice.
_MANY = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Op:
    """One operation of the step.

    Args:
        type: as TensorFlow calls it.
        name: in its graph.
        path: file of the program that asked for it, "" where none did.
        line: in that file.
        inputs: type and shape of each tensor that goes in.
        outputs: likewise of what comes out.
        on_host: True for a host call with soft placement, and for what works for nothing else.
    """

    type: str
    name: str
    path: str
    line: int
    inputs: Sequence[tuple[str, Shape]] = ()
    outputs: Sequence[tuple[str, Shape]] = ()
    on_host: bool = False

    def finding(self, level: Level, rule: str, what: str, why: str, instead: str) -> Finding:
        """Return a finding at the place of the operation."""
        return Finding(self.path, self.line, level, rule, what, why, instead)


def look(ops: Iterable[Op], *, strict: bool = False) -> list[Finding]:
    """Return what is wrong with the operations of a step.

    Args:
        ops: of one replica.
        strict: refuse dynamic shapes too.
    """
    found = []
    for op in ops:
        for rule in (_host_call,) if op.on_host else _RULES:
            finding = rule(op)
            if finding is not None:
                found.append(_strictly(finding) if strict else finding)
                break
    # Ragged and masked rows are counted in 64 bits, by whoever makes them.
    dynamic = {(each.path, each.line) for each in found if each.rule == "dynamic-shape"}
    return [each for each in found if each.rule != "int64" or (each.path, each.line) not in dynamic]


def _strictly(finding: Finding) -> Finding:
    if finding.rule != "dynamic-shape":
        return finding
    return Finding(finding.path, finding.line, "refused", *_rest(finding))


def _rest(finding: Finding) -> tuple[str, str, str, str]:
    return finding.rule, finding.what, finding.why, finding.instead


def _python(op: Op) -> Finding | None:
    if op.type not in _PYTHON:
        return None
    return op.finding(
        "refused",
        "python-code",
        "Python code in the step (tf.py_function, tf.numpy_function)",
        "a TPU runs compiled programs and no Python",
        "TensorFlow operations, or do it in the input pipeline (dataset.map)",
    )


def _host_call(op: Op) -> Finding | None:
    if op.type not in _HOST_CALLS and op.type not in _SUMMARIES:
        return None
    what = "a summary" if op.type in _SUMMARIES else "tf.print"
    return op.finding(
        "warning" if op.on_host else "refused",
        "host-call",
        f"{what} in the step",
        "the TPU waits for its host in every step; after tf.config.set_soft_device_placement(False) it refuses"
        if op.on_host
        else "after tf.config.set_soft_device_placement(False) a step has no way to its host",
        "return the value from the step, and print or write it outside, every so many steps",
    )


def _lookup(op: Op) -> Finding | None:
    if not op.type.startswith(_LOOKUP):
        return None
    return op.finding(
        "refused",
        "lookup-table",
        f"a lookup table in the step ({op.type})",
        "tables live on the host",
        "look words up in the input pipeline (dataset.map), and send numbers",
    )


def _host_only(op: Op) -> Finding | None:
    if not op.type.startswith(_HOST_ONLY):
        return None
    return op.finding(
        "refused",
        "host-only",
        f"{op.type} in the step",
        "files and formats are read by the host",
        "do it in the input pipeline (dataset.map)",
    )


def _strings(op: Op) -> Finding | None:
    if "string" not in {dtype for dtype, _ in (*op.inputs, *op.outputs)} or op.type in _SILENT:
        return None
    return op.finding(
        "refused",
        "strings",
        f"text in the step ({op.type})",
        "a TPU has no type for text",
        "turn text into numbers in the input pipeline (dataset.map)",
    )


def _double(op: Op) -> Finding | None:
    if not {"float64", "complex128"} & {dtype for dtype, _ in op.outputs} or op.type in ("Const", "Placeholder"):
        return None
    return op.finding(
        "refused",
        "float64",
        f"double precision in the step ({op.type})",
        "a TPU computes in bfloat16 and float32",
        "tf.cast(x, tf.float32) in the input pipeline; NumPy's arrays are float64 unless told",
    )


def _dynamic(op: Op) -> Finding | None:
    ragged = op.type.startswith("Ragged")
    if op.type not in _DYNAMIC and not ragged:
        return None
    return op.finding(
        "warning",
        "dynamic-shape",
        f"{op.type} in the step has {'rows of different lengths' if ragged else _DYNAMIC[op.type]}",
        "the compiler pads it to the largest possible size, and computes all of that",
        "a mask: tf.where(condition, x, 0) with three arguments, or padding in the input pipeline",
    )


def _long(op: Op) -> Finding | None:
    if op.type not in _ARITHMETIC or not any(dtype == "int64" and _size(shape) >= _MANY for dtype, shape in op.outputs):
        return None
    return op.finding(
        "warning",
        "int64",
        f"arithmetic in 64 bits ({op.type})",
        "a TPU does it in several steps of 32 bits",
        "tf.cast(x, tf.int32)",
    )


def _constant(op: Op) -> Finding | None:
    size = sum(_size(shape) * _width(dtype) for dtype, shape in op.outputs)
    if op.type != "Const" or size < _LARGE_CONSTANT:
        return None
    return op.finding(
        "warning",
        "constant",
        f"{size / 1e6:.0f} MB of data are a constant of the step",
        "they are part of the compiled program, sent anew whenever it changes",
        "feed them by a tf.data.Dataset, or keep them in a variable made inside strategy.scope()",
    )


def _size(shape: Shape) -> int:
    return 0 if shape is None else math.prod(1 if side is None else side for side in shape)


def _width(dtype: str) -> int:
    digits = "".join(letter for letter in dtype if letter.isdigit())
    return max(1, int(digits or 8) // 8)


_RULES: tuple[Callable[[Op], Finding | None], ...] = (
    *(_python, _lookup, _host_call, _host_only, _strings, _double, _dynamic, _long, _constant),
)


def host_calls() -> frozenset[str]:
    """Return the types of operations that a TPU leaves to its host, and whose results no other operation waits for."""
    return frozenset({*_HOST_CALLS, *_SUMMARIES, *_FLUSHES})


def input_in_python(ops: Iterable[Op]) -> list[Finding]:
    """Return where Python makes the data.

    Args:
        ops: of the functions of an input pipeline.
    """
    return [
        op.finding(
            "warning",
            "python-input",
            "Python makes the data (from_generator, py_function, numpy_function)",
            "one core of the host makes them one after the other, while all chips wait",
            "TensorFlow operations in dataset.map with num_parallel_calls, or data prepared as TFRecords",
        )
        for op in ops
        if op.type in _PYTHON
    ]


def unsupported(message: str, ops: Iterable[Op]) -> list[Finding]:
    """Return what the compiler itself has refused, at the lines that ask for it.

    Args:
        message: of its error: "Detected unsupported operations when trying to compile graph ...: Type (reason), ...".
        ops: of the step.
    """
    head, _, rest = message.partition("XLA_CPU_JIT:")
    if "unsupported operations" not in head:
        return []
    return [
        op.finding(
            "refused",
            "unsupported",
            f"{op.type} in the step",
            "the compiler has no such operation",
            "other operations, or do it in the input pipeline (dataset.map)",
        )
        for op in ops
        if f"{op.type} (" in rest and not any(rule(op) for rule in _RULES)
    ]
