"""The assumptions of a program about its environment.

Variables: set too late for TensorFlow, not available in tasks, in the way of a fork. The cluster: worker 0 taken for the chief.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ...checks.communication import Communication
from ...job.findings import Finding
from .program import Function, Import, Program, is_main_guard

_FRAMEWORKS = ("tensorflow", "keras", "tf_keras")
_FOR_TENSORFLOW = re.compile(r"KERAS_BACKEND|TF_\w+|XLA_\w+|OMP_\w+")
# Variables that TensorFlow, Keras and the libraries below them read only when they are imported.
_READ_AT_IMPORT = re.compile(
    r"(KERAS|TF|XLA|OMP|GOMP|KMP|MKL|OPENBLAS|GOTO|GOTOBLAS|BLIS|NPY|NUMPY|SCIPY|SKLEARN|JOBLIB|LOKY|HDF5|GCS|GRPC|ABSL|"
    r"PROTOCOL_BUFFERS|WRAPT|OPENSSL|LLVM|GFORTRAN)_\w+|TF2_BEHAVIOR|HOME"
)
# Read when a strategy is made, not at an import.
_READ_LATER = "TF_CONFIG"
# These modules set variables that a file names.
_DOTENV_MODULES = {"dotenv", "environs"}
# TensorFlow and these share libraries: both use the copy of the one that is imported first (tensorflow#14812, #57669).
_RIVALS = {"torch", "torchvision", "torchaudio", "jax", "jaxlib", "pyarrow"}
_UNKNOWN = ""
_CHIEF_ADVICE = (
    "Vertex AI's cluster, and the default here, is one chief and the rest workers. Next: count and check both, or give the "
    "program workers only with local_cluster='workers' (--local-cluster workers)."
)


def set_too_late(program: Program, trees: Mapping[str, ast.Module]) -> list[Finding]:
    """Return warnings for the variables that are set after TensorFlow was imported."""
    walk = _StatementWalk(program, trees)
    walk.run()
    return [
        Finding(
            "warning",
            f"{change} after {first_import} has imported TensorFlow or Keras: too late, it is read at the import. Next: "
            "set it above that line.",
        )
        for change, first_import in walk.late
    ]


def not_passed_on(program: Program, trees: Mapping[str, ast.Module], dropped: Collection[str]) -> list[Finding]:
    """Return a warning for each variable that the program reads, and that the caller has but no task gets (`dropped`)."""
    if not dropped:
        return []
    locations: dict[str, str] = {}
    nodes = [(file, node) for file, tree in trees.items() if _uses_environ(program, file) for node in ast.walk(tree)]
    for file, node in nodes:
        for name in _reads(node):
            if name in dropped:
                locations.setdefault(name, program.location(file, node))
    own = {name for _, node in nodes if not _is_setdefault(node) for name, is_set in _changes(node) if is_set}
    return [
        Finding("warning", f"{location} reads {name}, which is set here but is not passed on. Next: --env {name}.")
        for name, location in locations.items()
        if name not in own
    ]


@dataclass(frozen=True, kw_only=True)
class Preload:
    """The modules that one process could import for all tasks before they are forked."""

    modules: tuple[str, ...] = ()  # in this order
    blocked_by: str = ""  # the certain difference from imports in each task
    doubt: str = ""  # a possible difference
    strategies: tuple[str, ...] = ()  # of tf.distribute that the program names
    communications: tuple[Communication, ...] = ()  # between replicas, as the program requests them
    fits: tuple[str, ...] = ()  # where it calls Keras's `fit`
    connects: bool = True  # it names a strategy, or another means to train one model in several tasks


def find_preload(program: Program, trees: Mapping[str, ast.Module], *, legacy: bool) -> Preload:
    """Return the imports that the tasks of a program could share; `legacy` if `tf.keras` is tf_keras."""
    imported = {
        statement.top: program.location(file, statement.line)
        for file, tree in trees.items()
        for statement in program.imports(tree, file, everywhere=True)
    }
    modules = [name for name in _FRAMEWORKS if name in imported]
    if not modules:
        return Preload(blocked_by="the program does not import TensorFlow or Keras")
    if "tensorflow" in modules:
        modules = ["tensorflow", "tf_keras" if legacy else "keras"]
    changes = [
        (name, program.location(file, node))
        for file, tree in trees.items()
        if _uses_environ(program, file)
        for node in ast.walk(tree)
        for name, _ in _changes(node)
    ]
    return Preload(modules=tuple(modules), blocked_by=_blocked_by(changes), doubt=_doubt(changes, imported))


def _blocked_by(changes: list[tuple[str, str]]) -> str:
    for name, location in changes:
        if _READ_AT_IMPORT.fullmatch(name) and name != _READ_LATER:
            return f"{location} sets {name}, which is read when TensorFlow is imported"
    return ""


def _doubt(changes: list[tuple[str, str]], imported: Mapping[str, str]) -> str:
    for name, location in changes:
        if name == _UNKNOWN:
            return f"{location} sets a variable with a computed name"
    for module in sorted(_DOTENV_MODULES & imported.keys()):
        return f"{imported[module]} imports {module}, which sets variables"
    for module in sorted(_RIVALS & imported.keys()):
        return f"{imported[module]} imports {module}, which may have to come before TensorFlow"
    return ""


@dataclass
class _StatementWalk:
    """Walks through the program in the order in which its statements run, judged by reading alone."""

    program: Program
    trees: Mapping[str, ast.Module]
    late: list[tuple[str, str]] = field(default_factory=list)  # ("train.py:3 sets XLA_FLAGS", "train.py:1")
    _first_import: str = ""
    _seen: set[int] = field(default_factory=set)

    def run(self) -> None:
        entry = self.program.entry
        self._module(entry.file)
        tree = self.trees.get(entry.file)
        if tree is None:
            return
        functions = _functions(tree)
        if entry.function in functions:
            self._body(functions[entry.function], functions[entry.function].body, entry.file, functions)

    def _module(self, file: str) -> None:
        tree = self.trees.get(file)
        if tree is not None:
            self._body(tree, tree.body, file, _functions(tree))

    def _body(self, owner: ast.AST, body: list[ast.stmt], file: str, functions: Mapping[str, Function]) -> None:
        if id(owner) not in self._seen:
            self._seen.add(id(owner))
            for node in body:
                self._node(node, file, functions)

    def _node(self, node: ast.AST, file: str, functions: Mapping[str, Function]) -> None:
        # Without recursion, as `inside`.
        todo = [(node, False)]
        while todo:
            each, has_run = todo.pop()
            if has_run:
                self._after(each, file, functions)
            elif isinstance(each, (ast.Import, ast.ImportFrom)):
                for statement in self.program.imports_of(each, file):
                    self._import(statement, self.program.location(file, each))
            elif self._runs(each, file):
                inner = [(child, False) for child in ast.iter_child_nodes(each)]
                todo += [(each, True), *reversed(inner)]

    def _runs(self, node: ast.AST, file: str) -> bool:
        """Return whether the content of a node runs together with the node."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return False
        return not is_main_guard(node) or self.program.runs_as_main(file)

    def _after(self, node: ast.AST, file: str, functions: Mapping[str, Function]) -> None:
        for name in _presets(node) if self._first_import else ():
            self.late.append((f"{self.program.location(file, node)} sets {name}", self._first_import))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions:
            function = functions[node.func.id]
            self._body(function, function.body, file, functions)

    def _import(self, statement: Import, location: str) -> None:
        for path in self.program.find(statement) or []:
            self._module(path)
        if not self._first_import and statement.top in _FRAMEWORKS:
            self._first_import = location


def _functions(tree: ast.Module) -> dict[str, Function]:
    return {node.name: node for node in tree.body if isinstance(node, Function)}


def _presets(node: ast.AST) -> list[str]:
    names = [name for name, is_set in _changes(node) if is_set]
    return [name for name in names if _FOR_TENSORFLOW.fullmatch(name) and name != _READ_LATER]


def _uses_environ(program: Program, file: str) -> bool:
    return any(word in program.text(file) for word in (b"environ", b"getenv", b"putenv", b"unsetenv"))


def _changes(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield each variable that one statement or call changes, "" if its name is not written there; False if it removes it."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and _is_environ(node.value):
        yield _text(node.slice), isinstance(node.ctx, ast.Store)
    elif isinstance(node, ast.AugAssign) and _is_environ(node.target):
        yield from ((name, True) for name in _keys(node.value))
    elif isinstance(node, ast.Call):
        called = _called(node)
        if called == "environ.update":
            yield from ((name, True) for argument in node.args for name in _keys(argument))
            yield from ((word.arg or _UNKNOWN, True) for word in node.keywords)
        elif called in ("putenv", "environ.setdefault", "environ.__setitem__"):
            yield _first_argument(node), True
        elif called in ("unsetenv", *(f"environ.{name}" for name in ("pop", "popitem", "clear", "__delitem__"))):
            yield _first_argument(node), False


def _reads(node: ast.AST) -> Iterator[str]:
    """Yield the variables that an expression reads, if their names are written there."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is_environ(node.value):
        yield _text(node.slice)
    elif isinstance(node, ast.Call):
        if _called(node) in ("environ.get", "environ.pop", "environ.setdefault", "getenv"):
            yield _first_argument(node)
    elif (
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], (ast.In, ast.NotIn))
        and _is_environ(node.comparators[0])
    ):
        yield _text(node.left)


def _is_setdefault(node: ast.AST) -> bool:
    """True for a call that sets a variable unless the caller has."""
    return isinstance(node, ast.Call) and _called(node) == "environ.setdefault"


def _called(node: ast.Call) -> str:
    """Return "environ.get" for `os.environ.get(...)` and `environ.get(...)`, "getenv" for `os.getenv(...)`."""
    if isinstance(node.func, ast.Name):
        return node.func.id
    if not isinstance(node.func, ast.Attribute):
        return ""
    return f"environ.{node.func.attr}" if _is_environ(node.func.value) else node.func.attr


def _is_environ(node: ast.AST) -> bool:
    names = ("environ", "environb")
    return (isinstance(node, ast.Attribute) and node.attr in names) or (isinstance(node, ast.Name) and node.id in names)


def _keys(node: ast.AST) -> Iterator[str]:
    """Yield the keys of a dict, "" for keys that are not literals."""
    if isinstance(node, ast.Dict):
        yield from (_UNKNOWN if key is None else _text(key) for key in node.keys)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        yield from (word.arg or _UNKNOWN for word in node.keywords)
        if node.args:
            yield _UNKNOWN
    else:
        yield _UNKNOWN


def _first_argument(node: ast.Call) -> str:
    return _text(node.args[0]) if node.args else _UNKNOWN


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else _UNKNOWN


def assumptions_without_chief(program: Program, trees: Mapping[str, ast.Module]) -> list[Finding]:
    """Return a warning for each line that mistakes worker 0 for the chief, or the workers for all tasks."""
    return [
        Finding("warning", f"{program.location(file, node)} {assumption}. {_CHIEF_ADVICE}")
        for file, tree in sorted(trees.items())
        for node in ast.walk(tree)
        if (assumption := _assumption(node))
    ]


def _assumption(node: ast.AST) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len" and node.args:
        counted = node.args[0]
        if (
            isinstance(counted, ast.Subscript)
            and isinstance(counted.slice, ast.Constant)
            and counted.slice.value == "worker"
            and "cluster" in ast.dump(counted.value)
        ):
            return "uses the number of workers as the number of tasks, which omits the chief"
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        tests = [ast.unparse(value) for value in node.values]
        compares_type = any("task_type" in test and "worker" in test for test in tests)
        if compares_type and any("task_id == 0" in test for test in tests):
            return "treats worker 0 as the chief"
    return ""
