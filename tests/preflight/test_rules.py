"""Each rule of a preflight with a hit and with a near miss, as tables: nothing is imported or run."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from sdk.planning.preflight_findings import Layer, PreflightFinding, PreflightReport, tidy
from sdk.preflight import advice, describe, rules, sizes

SMALL = ("float32", (64, 128))


def op(kind: str, *, inputs=(SMALL,), outputs=(SMALL,), line=7, on_host=False):
    return rules.StepOp(
        type=kind, name="x", path="train.py", line=line, inputs=inputs, outputs=outputs, on_host=on_host
    )


LONG = ("int64", (64, 64))
HITS = [
    (op("EagerPyFunc"), "refused", "python-code"),
    (op("PyFunc"), "refused", "python-code"),
    (op("LookupTableFindV2", inputs=[("resource", ())]), "refused", "lookup-table"),
    (op("ReadFile", outputs=[("string", ())]), "refused", "host-only"),
    (op("DecodeJpeg", inputs=[("string", ())]), "refused", "host-only"),
    (op("AsString", outputs=[("string", (64,))]), "refused", "strings"),
    (op("Mul", outputs=[("float64", (64,))]), "refused", "float64"),
    (op("PrintV2", inputs=[("string", ())], outputs=(), on_host=True), "warning", "host-call"),
    (op("StringFormat", outputs=[("string", ())], on_host=True), "warning", "host-call"),
    (op("WriteSummary", outputs=(), on_host=True), "warning", "host-call"),
    # After tf.config.set_soft_device_placement(False).
    (op("WriteSummary", outputs=()), "refused", "host-call"),
    (op("Where", outputs=[("int64", (None, 2))]), "warning", "dynamic-shape"),
    (op("Unique"), "warning", "dynamic-shape"),
    (op("RaggedTensorToTensor"), "warning", "dynamic-shape"),
    (op("BatchMatMulV2", outputs=[LONG]), "warning", "int64"),
    (op("Const", outputs=[("float32", (1024, 1024))]), "warning", "constant"),
]


@pytest.mark.parametrize(("op", "level", "rule"), HITS, ids=lambda value: getattr(value, "type", value))
def test_code_that_a_tpu_refuses_or_pays_for_is_found_at_its_line(op, level, rule):
    (finding,) = rules.check([op])
    assert (finding.path, finding.line, finding.level, finding.rule) == ("train.py", 7, level, rule)
    assert finding.what and finding.why and finding.instead


MISSES = [
    op("MatMul"),
    op("GatherV2", inputs=[SMALL, ("int64", (4096,))]),  # identifiers that are looked up
    op("AddV2", outputs=[("int64", ())]),  # a step counter
    op("Cast", inputs=[LONG], outputs=[("int32", (64, 64))]),
    op("SelectV2"),  # tf.where with three arguments
    op("Const", outputs=[("string", ())]),  # the message of an assertion
    op("Assert", inputs=[("bool", ()), ("string", ())], outputs=()),
    op("Const", outputs=[("float32", (128, 128))]),
    op("Const", outputs=[("float64", ())]),
    op("Placeholder", outputs=[("float64", ())]),
]


@pytest.mark.parametrize("near", MISSES, ids=lambda value: value.type)
def test_code_that_only_looks_like_it_is_not_reported(near):
    assert rules.check([near]) == []


def test_dynamic_shapes_are_refused_only_if_strict_and_ragged_rows_reported_once():
    levels = [rules.check([op("Where")], strict=strict)[0].level for strict in (False, True)]
    assert levels == ["warning", "refused"]
    assert rules.check([op("BatchMatMulV2", outputs=[LONG])], strict=True)[0].level == "warning"
    ragged, count = op("RaggedRange"), op("Mul", outputs=[LONG])
    assert [finding.rule for finding in rules.check([count, ragged])] == ["dynamic-shape"]
    elsewhere = op("Mul", outputs=[LONG], line=8)
    assert [finding.rule for finding in rules.check([elsewhere, ragged])] == ["int64", "dynamic-shape"]


REFUSAL = (
    "Detected unsupported operations when trying to compile graph f[] on XLA_CPU_JIT: Foo (No registered 'Foo'), Bar ()"
)


def test_an_operation_that_the_compiler_refuses_is_found_at_its_line():
    findings = rules.unsupported(REFUSAL, [op("Foo", line=3), op("MatMul"), op("Bar", line=5)])
    assert [(finding.line, finding.rule) for finding in findings] == [(3, "unsupported"), (5, "unsupported")]
    assert rules.unsupported("RESOURCE_EXHAUSTED", [op("Foo")]) == []
    # One with a separate rule is not unsupported, too.
    assert rules.unsupported(REFUSAL.replace("Foo", "PrintV2"), [op("PrintV2", outputs=())]) == []


@pytest.mark.parametrize(
    ("kind", "message", "rule"),
    [
        ("NotImplementedError", "numpy() is only available when eager execution is enabled.", "python-value"),
        ("AttributeError", "'SymbolicTensor' object has no attribute 'numpy'", "python-value"),
        ("NotImplementedError", "Cannot convert a symbolic tf.Tensor (x:0) to a numpy array.", "python-value"),
        ("TypeError", "float() argument must be a string or a real number, not 'SymbolicTensor'", "python-value"),
        ("OperatorNotAllowedInGraphError", "Using a symbolic `tf.Tensor` as a Python `bool` is not allowed.", "python-control"),
        ("OperatorNotAllowedInGraphError", "Iterating over a symbolic `tf.Tensor` is not allowed.", "python-control"),
        ("ValueError", "Shapes (3,) and (4,) are incompatible", None),
        ("KeyError", "numpy", None),
    ],
)  # fmt: skip
def test_an_error_of_the_program_is_recognized_as_python_in_a_step(kind, message, rule):
    finding = rules.failure(kind, message, "train.py", 4)
    assert (finding and finding.rule) == rule


DOT = (
    "  dot.1 = f32[16,256]{1,0} dot(f32[16,784]{1,0} a.1, f32[784,256]{1,0} b.1), lhs_contracting_dims={1}, "
    'rhs_contracting_dims={0}, metadata={op_type="MatMul" op_name="dense/MatMul"}'
)
CONVOLUTION = (
    "  c.2 = f32[8,16,16,32]{3,2,1,0} convolution(f32[8,16,16,4]{3,2,1,0} a, f32[3,3,4,32]{3,2,1,0} k), "
    'window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, metadata={op_name="conv/Conv2D"}'
)


def test_products_are_read_with_rows_depth_and_columns_the_most_expensive_first():
    layers = sizes.layers(f"HloModule x\n{DOT}\n{CONVOLUTION}\n")
    shapes = [(layer.name, layer.shape) for layer in layers]
    assert shapes == [("dense/MatMul", (16, 784, 256)), ("conv/Conv2D", (8 * 16 * 16, 36, 32))]
    assert layers[0].flops == 2 * 16 * 784 * 256
    assert layers[0].padded == pytest.approx(1 - 784 / 896, abs=1e-4)
    assert layers[1].padded == pytest.approx(1 - 36 * 32 / (128 * 128), abs=1e-4)


def test_the_share_of_padding_counts_computed_elements():
    full = Layer(name="a", flops=100, padded=0.0, shape=(8, 128, 128))
    half = Layer(name="b", flops=50, padded=0.5, shape=(8, 64, 128))
    assert sizes.share((full, half)) == pytest.approx(0.25)
    assert sizes.share(()) == 0.0


def test_memory_independent_of_the_batch_stays_in_the_largest_batch():
    assert sizes.largest_batch(batch=8, state=100, peak=180, memory=1100) == 96
    assert sizes.largest_batch(batch=1, state=100, peak=400, memory=1100) == 3
    assert sizes.largest_batch(batch=8, state=2000, peak=2080, memory=1100) == 0
    # The peak is in the table of buffers.
    assert sizes.peak_bytes("BufferAssignment:\nTotal bytes used: 12345 (12.1KiB)\n") == 12345
    assert sizes.peak_bytes("nothing of the kind") is None


def test_each_rule_reports_a_line_once_in_the_order_of_the_lines():
    def finding(line, rule, what="x"):
        return PreflightFinding("train.py", line, "warning", rule, what, "y", "z")

    findings = tidy([finding(9, "a"), finding(3, "b"), finding(3, "b", "again"), finding(3, "a")])
    assert [(each.line, each.rule, each.what) for each in findings] == [(3, "a", "x"), (3, "b", "x"), (9, "a", "x")]
    assert str(findings[0]) == "train.py:3: warning: x: y. Instead: z [a]"


def test_a_report_comes_back_from_json_as_it_was():
    layer = Layer(name="a", flops=1, padded=0.5, shape=(1, 2, 3))
    finding = PreflightFinding("train.py", 1, "refused", "strings", "a", "b", "c")
    report = PreflightReport(accelerator="v5e-8", findings=(finding,), layers=(layer,), batch=8, reached="done")
    assert PreflightReport.from_json(report.to_json()) == report
    assert (report.outcome, report.refused, report.passed) == ("refused", True, False)
    with pytest.raises(ValueError, match="another version"):
        PreflightReport.from_json(report.to_json().replace('"version": 1', '"version": 2'))
    for text in ("[]", "{}", "null", '{"version": 1}', "nonsense"):
        with pytest.raises(ValueError):
            PreflightReport.from_json(text)


@pytest.mark.parametrize(
    ("about", "outcome", "words"),
    [
        ({"reached": "done"}, "passed", "found nothing that a TPU refuses"),
        ({"stopped": "it failed", "stopped_by": "program"}, "failed", "no verdict: the program failed"),
        ({"stopped": "none", "stopped_by": "no step"}, "no step", "no verdict: the program has no"),
        ({"stopped": "300 s", "stopped_by": "limit"}, "unfinished", "no verdict: the inspection is"),
        ({"stopped": "?", "stopped_by": "podlift"}, "unfinished", "no verdict: the inspection is"),
    ],
)  # fmt: skip
def test_only_a_complete_inspection_reports_that_nothing_was_found(about, outcome, words):
    report = PreflightReport(accelerator="v5e-8", **about)
    assert (report.outcome, report.passed) == (outcome, outcome == "passed")
    assert words in describe(report)
    assert json.loads(report.to_json())["outcome"] == outcome


KERAS = """Exception encountered when calling Sequential.call().

\x1b[1mInput 0 of layer "dense" is incompatible with the layer\x1b[0m

Arguments received by Sequential.call():
  • inputs=tf.Tensor(shape=(8, 7), dtype=float32)
  • kwargs=<class 'inspect._empty'>"""
STAGED = """in user code:

    File "/t/train.py", line 32, in train  *
        strategy.run(step)

    ValueError: Dimensions must be equal, but are 8 and 7."""


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (KERAS, 'Input 0 of layer "dense" is incompatible with the layer'),
        (STAGED, "ValueError: Dimensions must be equal, but are 8 and 7."),
        ("no such file", "no such file"),
        ("", ""),
    ],
)
def test_the_cause_is_the_line_that_names_the_mistake(message, cause):
    assert rules.cause(message) == cause


@dataclass
class Fit:
    path = "train.py"
    line = 5
    on_tpu = True


@pytest.mark.parametrize(("gib", "levels"), [(10, []), (15, ["warning"]), (19, ["warning"]), (21, ["refused"])])
def test_memory_is_refused_only_where_no_compiler_could_make_it_fit(gib, levels):
    about = advice.StepFacts(Fit(), batch=64, batch_is_exact=True, uneven=None)
    findings = advice.memory(about, gib << 30, 16 << 30, 48, 8)
    assert [finding.level for finding in findings] == levels
    assert all("at most 48 examples on each replica, 384 in a global batch" in finding.instead for finding in findings)


def test_padding_is_reported_for_large_products_only():
    about = advice.StepFacts(Fit(), batch=64, batch_is_exact=True, uneven=None)
    small = Layer(name="dense", flops=10**6, padded=0.9, shape=(64, 10, 10))
    large = Layer(name="dense", flops=10**11, padded=0.9, shape=(64, 10, 10))
    backwards = Layer(name="gradient_tape/dense", flops=10**11, padded=0.9, shape=(10, 64, 10))
    full = Layer(name="wide", flops=10**12, padded=0.0, shape=(64, 128, 128))
    assert advice.padding(about, (small,)) == []
    assert [finding.rule for finding in advice.padding(about, (large,))] == ["padding"]
    assert advice.padding(about, (full, large)) == []
    assert advice.padding(about, (full, backwards)) == []


@pytest.mark.parametrize(("batch", "rules_of_it"), [(8, []), (64, []), (5, ["batch"]), (12, ["batch"])])
def test_a_batch_is_counted_in_eights(batch, rules_of_it):
    about = advice.StepFacts(Fit(), batch=batch, batch_is_exact=True, uneven=None)
    assert [finding.rule for finding in advice.feeding(about)] == rules_of_it
    assert advice.feeding(advice.StepFacts(Fit(), batch=batch, batch_is_exact=False, uneven=None)) == []
