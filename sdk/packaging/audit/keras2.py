"""Finds the uses of Keras 2 in a program that Keras 3 rejects, if the source leaves no doubt.

The kind of a name is known if everything that binds it in its scope is of one kind: a model, an optimizer, a metric. Code that
may fail on purpose, inside `try` or under a test of a version, is not judged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ... import text
from ...checks import keras2
from ...job.findings import Finding
from .program import SCOPES, Function, Program, inside

_SHOWN = 3
_SWITCH = "TF_USE_LEGACY_KERAS"
_GUARD = re.compile(r"version|hasattr|legacy|keras|callable", re.I)
_MODELS = re.compile(
    r"(models\.)?(Model|Sequential)|models\.(load_model|clone_model|model_from_json)|applications\.[A-Z]\w+"
)
_OPTIMIZERS, _METRICS = re.compile(r"optimizers\.[A-Z]\w+"), re.compile(r"metrics\.[A-Z]\w+")
_LAYERS = re.compile(r"layers\.(?!Input)[A-Z]\w+")
_INPUTS = ("Input", "layers.Input")
_UNKNOWN = ""


def rejected_by_keras_3(program: Program, trees: Mapping[str, ast.Module]) -> list[Finding]:
    """Return a warning with the first lines that Keras 3 rejects, and with the way to give the program Keras 2."""
    if any(_switches(tree) for tree in trees.values()):
        return []
    lines, own = [], False
    methods = {node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, Function)}
    for file, tree in sorted(trees.items(), key=lambda item: (item[0] != program.entry.file, item[0])):
        reader = _Reader(tree, methods)
        for node, why in sorted(reader.rejections(), key=lambda item: (item[0].lineno, item[0].col_offset)):  # type: ignore[attr-defined]
            lines.append(f"{program.location(file, node)} {why}")
        own = own or reader.imports_keras
    if not lines:
        return []
    lines = list(dict.fromkeys(lines))
    advice = f"Next: {keras2.ADVICE} makes tf.keras Keras 2, or change the program."
    if own:
        advice += " Imports from keras itself stay Keras 3: import from TensorFlow (from tensorflow import keras)."
    first_lines, more = "; ".join(lines[:_SHOWN]), len(lines) - _SHOWN
    beside = f"; and {text.counted(more, 'more line')}" if more > 0 else ""
    return [Finding("warning", f"Keras 3 rejects code for Keras 2: {first_lines}{beside}. {advice}")]


def _switches(tree: ast.Module) -> bool:
    """True if a module names the variable that chooses between the two."""
    return any(isinstance(node, ast.Constant) and node.value == _SWITCH for node in ast.walk(tree))


@dataclass
class _Scope:
    """A module, a class or a function: the kinds of its names, `_UNKNOWN` if a kind is not certain."""

    outer: _Scope | None
    is_class: bool = False
    kinds: dict[str, str] = field(default_factory=dict)
    values: dict[str, ast.expr | None] = field(default_factory=dict)  # of names that are bound once

    def find(self, name: str) -> _Scope | None:
        scope: _Scope | None = self
        while scope is not None and (name not in scope.values or (scope.is_class and scope is not self)):
            scope = scope.outer
        return scope

    def bind(self, name: str, value: ast.expr | None) -> None:
        self.values[name] = None if name in self.values else value

    def kind(self, name: str, kind: str) -> None:
        self.kinds[name] = kind if self.kinds.get(name, kind) == kind else _UNKNOWN


class _Reader:
    """Reads one module. Dotted names are relative to Keras: "layers.Dense"."""

    def __init__(self, tree: ast.Module, methods: set[str]) -> None:
        self._tree = tree
        self._methods = methods  # of the whole program: its own definitions may accept anything
        self._imports = imported(tree)
        self.imports_keras = any(name.partition(".")[0] == "keras" for name in self._imports.values())
        self._guarded = guarded(tree)
        self._rejected: list[tuple[ast.AST, str]] = []
        self._returns: dict[str, str] = {}
        self._bases: dict[str, str] = {}

    def rejections(self) -> list[tuple[ast.AST, str]]:
        """Return each place that Keras 3 rejects, and why."""
        if not self._imports:
            return []
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom) and not node.level and id(node) not in self._guarded:
                self._import(node)
        # Twice: the result of a function is known only after reading the function.
        for _ in range(2):
            self._rejected = [rejection for rejection in self._rejected if isinstance(rejection[0], ast.ImportFrom)]
            self._scope(self._tree, None)
        return self._rejected

    def _import(self, node: ast.ImportFrom) -> None:
        base = _below_keras(node.module or "")
        for alias in node.names if base is not None else ():
            name = f"{base}.{alias.name}".lstrip(".")
            if keras2.is_gone(name):
                self._rejected.append((node, f"imports {alias.name} from {node.module}, which Keras 3 does not have"))
                return

    # --- Scopes -------------------------------------------------------------------------------------------------------

    def _scope(self, owner: ast.AST, outer: _Scope | None, self_kind: str = _UNKNOWN) -> None:
        scope = _Scope(outer, isinstance(owner, ast.ClassDef))
        arguments = getattr(owner, "args", None)
        if isinstance(arguments, ast.arguments):
            for argument in (
                *arguments.posonlyargs,
                *arguments.args,
                *arguments.kwonlyargs,
                arguments.vararg,
                arguments.kwarg,
            ):
                if argument is not None:
                    scope.bind(argument.arg, None)
                    scope.kind(argument.arg, self._annotated(argument.annotation))
            if self_kind and arguments.args:
                scope.kinds[arguments.args[0].arg] = self_kind
        nodes = list(inside(owner))
        for node in nodes:
            self._bind(node, scope)
        for node in nodes:
            if (name := _only_target(node)) is not None:
                scope.kind(name, self._kind(node.value, scope))  # type: ignore[attr-defined]
        if not isinstance(owner, ast.Lambda):
            self._functional(getattr(owner, "body", []), scope, set())
        for node in nodes:
            self._judge(node, scope)
        self._returned(owner, nodes, scope)
        for node in nodes:
            if isinstance(node, SCOPES):
                self._scope(node, scope, self._bases.get(getattr(owner, "name", ""), "") if scope.is_class else "")

    def _bind(self, node: ast.AST, scope: _Scope) -> None:
        if isinstance(node, ast.ClassDef):
            scope.bind(node.name, None)
            bases = [self._dotted(base) or "" for base in node.bases]
            kinds = [kind for kind in map(_kind_of_class, bases) if kind]
            kinds += [
                self._bases[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in self._bases
            ]
            if kinds:
                self._bases[node.name] = kinds[0]
        elif isinstance(node, Function):
            scope.bind(node.name, None)
        elif (name := _only_target(node)) is not None:
            scope.bind(name, node.value)  # type: ignore[attr-defined]
        else:
            for name in _bound_otherwise(node):
                scope.bind(name, None)
                scope.kinds[name] = _UNKNOWN

    def _returned(self, owner: ast.AST, nodes: list[ast.AST], scope: _Scope) -> None:
        if isinstance(owner, ast.FunctionDef) and not owner.decorator_list and scope.outer and not scope.outer.outer:
            kinds = {self._kind(node.value, scope) for node in nodes if isinstance(node, ast.Return) and node.value}
            if self._annotated(owner.returns) == "model":
                kinds = {"model"}
            self._returns[owner.name] = kinds.pop() if len(kinds) == 1 else _UNKNOWN

    # --- The kind of an expression --------------------------------------------------------------------------------------

    def _dotted(self, node: ast.AST | None) -> str | None:
        """Return "layers.Dense" for an expression that means it in this module."""
        full = self._full(node)
        return None if full is None else _below_keras(full)

    def _full(self, node: ast.AST | None) -> str | None:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._imports:
            return None
        return ".".join([self._imports[node.id], *parts])

    def _annotated(self, annotation: ast.expr | None) -> str:
        return "model" if _MODELS.fullmatch(self._dotted(annotation) or "") else _UNKNOWN

    def _kind(self, node: ast.expr, scope: _Scope) -> str:
        if isinstance(node, ast.Name):
            owner = scope.find(node.id)
            return owner.kinds.get(node.id, _UNKNOWN) if owner else _UNKNOWN
        if isinstance(node, ast.Attribute):
            inside = self._kind(node.value, scope)
            return {("model", "optimizer"): "optimizer", ("callback", "model"): "model"}.get(
                (inside, node.attr), _UNKNOWN
            )
        if not isinstance(node, ast.Call):
            return _UNKNOWN
        if isinstance(node.func, ast.Name) and (node.func.id in self._returns or node.func.id in self._bases):
            return self._returns.get(node.func.id) or self._bases.get(node.func.id, _UNKNOWN)
        return _kind_of_call(self._dotted(node.func) or "")

    def _tail(self, node: ast.expr | None, scope: _Scope, depth: int = 3) -> str | None:
        """Return how a path ends, None if that is unknown."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) and node.value else None
        if isinstance(node, ast.JoinedStr) and node.values:
            return self._tail(node.values[-1], scope, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
            return self._tail(node.right, scope, depth)
        if isinstance(node, ast.Name) and depth:
            owner = scope.find(node.id)
            return self._tail(owner.values[node.id], owner, depth - 1) if owner else None
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and called in ("os.path.join", "str", "Path", "pathlib.Path") and node.args:
            return self._tail(node.args[-1], scope, depth)
        if node is not None and re.fullmatch(
            r"os\.(environ\[|environ\.get\(|getenv\()'AIP_(MODEL|CHECKPOINT)_DIR'.*[\])]", ast.unparse(node)
        ):
            return "/"
        return None

    # --- Judgements ---------------------------------------------------------------------------------------------------

    def _judge(self, node: ast.AST, scope: _Scope) -> None:
        if id(node) in self._guarded:
            return
        if isinstance(node, ast.Attribute):
            self._attribute(node, scope)
        elif isinstance(node, ast.Call):
            dotted = self._dotted(node.func)
            if dotted is not None:
                self._call(node, dotted, scope)
            elif isinstance(node.func, ast.Attribute):
                self._method(node, node.func, scope)

    def _attribute(self, node: ast.Attribute, scope: _Scope) -> None:
        dotted = self._dotted(node)
        if dotted is not None and dotted in keras2.GONE:
            self._say(node, f"uses {ast.unparse(node)}, which Keras 3 does not have")
        elif isinstance(node.ctx, ast.Load):
            names = keras2.ATTRIBUTES.get(self._kind(node.value, scope), frozenset())
            certain = node.attr.endswith("_generator") and node.attr in keras2.ATTRIBUTES["model"]
            if (node.attr in names or certain) and node.attr not in self._methods:
                self._say(node, f"uses {ast.unparse(node)}, which Keras 3 does not have")

    def _call(self, node: ast.Call, dotted: str, scope: _Scope) -> None:
        name = dotted.rpartition(".")[2]
        if dotted.startswith("optimizers.legacy."):
            self._say(node, f"calls {ast.unparse(node.func)}, which Keras 3 does not have")
            return
        arguments = keras2.ARGUMENTS.get(dotted, frozenset())
        if re.fullmatch(r"(optimizers|layers)\.(?!Input)[A-Z]\w+", dotted):
            arguments |= keras2.ARGUMENTS[dotted.partition(".")[0] + "."]
        self._arguments(node, name, arguments)
        if dotted == "callbacks.ModelCheckpoint":
            only = _keyword(node, "save_weights_only")
            if only is None or isinstance(only, ast.Constant):
                weights = isinstance(only, ast.Constant) and bool(only.value)
                self._file(node, 0, keras2.WEIGHT_FILES if weights else keras2.CHECKPOINT_FILES, scope)
        elif dotted in ("models.save_model", "saving.save_model"):
            self._file(node, 1, keras2.MODEL_FILES, scope)
        reduction = _keyword(node, "reduction")
        if dotted.startswith("losses.") and (
            (isinstance(reduction, ast.Constant) and reduction.value == "auto")
            or self._dotted(reduction) == "losses.Reduction.AUTO"
        ):
            self._say(node, f"gives {name} the reduction 'auto', which Keras 3 does not have")

    def _method(self, node: ast.Call, method: ast.Attribute, scope: _Scope) -> None:
        kind, name = self._kind(method.value, scope), method.attr
        if name in self._methods:
            return
        if kind in ("layer", "model") and name == "add_weight" and _is_text(node.args[:1]):
            self._say(node, "gives add_weight a name by position, which Keras 3 takes for a shape")
        arguments = keras2.METHOD_ARGUMENTS.get(f"{kind}.{name}", frozenset())
        anyway = [words for key, words in keras2.METHOD_ARGUMENTS.items() if key.endswith(f".{name}")]
        self._arguments(node, name, arguments | (frozenset().union(*anyway) & keras2.UNMISTAKABLE))
        if kind == "model" and name == "save":
            self._file(node, 0, keras2.MODEL_FILES, scope)
        elif kind == "model" and name == "save_weights":
            self._file(node, 0, keras2.WEIGHT_FILES, scope)
        elif kind == "model" and name == "load_weights" and node.args:
            argument: ast.expr | None = node.args[0]
            if isinstance(argument, ast.Name) and (owner := scope.find(argument.id)):
                argument = owner.values[argument.id]
            if isinstance(argument, ast.Call) and self._full(argument.func) == "tensorflow.train.latest_checkpoint":
                self._say(node, "loads a TensorFlow checkpoint with load_weights, which Keras 3 does not read")

    def _arguments(self, node: ast.Call, name: str, rejected: frozenset[str]) -> None:
        for keyword in node.keywords:
            if keyword.arg in rejected:
                self._say(node, f"passes {keyword.arg}= to {name}, which Keras 3 does not accept")

    def _file(self, node: ast.Call, position: int, accepted: tuple[str, ...], scope: _Scope) -> None:
        path = node.args[position] if len(node.args) > position else _keyword(node, "filepath")
        if _keyword(node, "zipped") is not None or (
            position < len(node.args) and isinstance(node.args[position], ast.Starred)
        ):
            return
        tail = self._tail(path, scope)
        if tail is not None and not tail.endswith(accepted):
            expected = " or ".join(accepted[:2])
            self._say(node, f"writes {ast.unparse(path)}, which Keras 3 accepts only as a {expected} file")  # type: ignore[arg-type]

    def _functional(self, body: list[ast.stmt], scope: _Scope, symbolic: set[str]) -> None:
        """Follow the tensors of functional models through the statements, in their order."""
        for node in body:
            inner = [part for name in ("body", "orelse", "finalbody") for part in getattr(node, name, ())]
            if isinstance(node, ast.With):
                self._functional(inner, scope, symbolic)
            elif inner and not isinstance(node, SCOPES):
                # Changes in a loop or a condition are not followed out of it.
                self._functional(inner, scope, set(symbolic))
                symbolic -= _stored(node)
            elif not inner:
                for call in inside(node):
                    if (
                        isinstance(call, ast.Call)
                        and id(call) not in self._guarded
                        and self._takes_tensor(call, symbolic)
                    ):
                        called = ast.unparse(call.func)
                        self._say(call, f"calls {called} on a tensor of a functional model, which Keras 3 rejects")
                name = _only_target(node)
                is_symbolic = name is not None and self._is_symbolic(node.value, symbolic)  # type: ignore[attr-defined]
                symbolic -= _stored(node)
                symbolic |= {name} if is_symbolic and name else set()

    def _takes_tensor(self, call: ast.Call, symbolic: set[str]) -> bool:
        full = self._full(call.func) or ""
        if not full.startswith("tensorflow.") or not keras2.TENSOR_FUNCTIONS.fullmatch(full.partition(".")[2]):
            return False
        tensors = [item for argument in call.args[:1] for item in (getattr(argument, "elts", None) or [argument])]
        return any(isinstance(item, ast.Name) and item.id in symbolic for item in tensors)

    def _is_symbolic(self, node: ast.expr, symbolic: set[str]) -> bool:
        if isinstance(node, ast.Name):
            return node.id in symbolic
        if not isinstance(node, ast.Call):
            return False
        if self._dotted(node.func) in _INPUTS:
            return not any(keyword.arg == "tensor" for keyword in node.keywords)
        is_layer = isinstance(node.func, ast.Call) and _LAYERS.fullmatch(self._dotted(node.func.func) or "")
        return bool(is_layer and node.args and self._is_symbolic(node.args[0], symbolic))

    def _say(self, node: ast.AST, why: str) -> None:
        self._rejected.append((node, why))


# --- Nodes and names --------------------------------------------------------------------------------------------------


def _only_target(node: ast.AST) -> str | None:
    """Return the name for `name = value`."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    return target.id if isinstance(target, ast.Name) else None


def _bound_otherwise(node: ast.AST) -> set[str]:
    """Return the names that a statement binds itself, without the statements inside it."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.NamedExpr, ast.AugAssign, ast.AnnAssign)):
        return _stored(node.target)
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return {name for item in node.items if item.optional_vars for name in _stored(item.optional_vars)}
    return {name for target in node.targets for name in _stored(target)} if isinstance(node, ast.Assign) else set()


def _stored(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}


def _is_text(nodes: list[ast.expr]) -> bool:
    return bool(nodes) and all(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in nodes)


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def guarded(tree: ast.Module) -> set[int]:
    """Return the ids of the nodes that may fail on purpose, or that run with one Keras only."""
    ids: set[int] = set()
    for node in ast.walk(tree):
        tested = isinstance(node, (ast.If, ast.IfExp)) and _GUARD.search(ast.unparse(node.test))
        if tested or (isinstance(node, ast.Try) and node.handlers):
            ids.update(map(id, ast.walk(node)))
    return ids


def imported(tree: ast.Module, tops: Collection[str] = ("tensorflow", "keras")) -> dict[str, str]:
    """Return the full names, below these packages, that names stand for; a name with any other meaning is left out."""
    meanings: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                meanings.setdefault(name, set()).add(alias.name if alias.asname else name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}" if node.module and not node.level else _UNKNOWN
                meanings.setdefault(alias.asname or alias.name, set()).add(full)
        elif isinstance(node, ast.arg):
            meanings.setdefault(node.arg, set()).add(_UNKNOWN)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            meanings.setdefault(node.id, set()).add(_UNKNOWN)
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            meanings.setdefault(node.name, set()).add(_UNKNOWN)
    single = {name: _plain(min(fulls)) for name, fulls in meanings.items() if len(fulls) == 1}
    return {name: full for name, full in single.items() if full.partition(".")[0] in tops}


def _plain(name: str) -> str:
    return re.sub(r"^tensorflow\.compat\.v2\b", "tensorflow", name)


def _below_keras(full: str) -> str | None:
    """Return "layers.Dense" for "tensorflow.keras.layers.Dense" and "keras.layers.Dense"."""
    match = re.fullmatch(r"(?:tensorflow\.)?keras(?:\.(.*))?", _plain(full))
    return None if match is None else match[1] or ""


def _kind_of_class(dotted: str) -> str:
    if re.fullmatch(r"(models\.)?(Model|Sequential)", dotted):
        return "model"
    return "layer" if _LAYERS.fullmatch(dotted) else "callback" if dotted == "callbacks.Callback" else _UNKNOWN


def _kind_of_call(dotted: str) -> str:
    kinds = {"model": _MODELS, "optimizer": _OPTIMIZERS, "metric": _METRICS}
    return next((kind for kind, pattern in kinds.items() if pattern.fullmatch(dotted)), _UNKNOWN)
