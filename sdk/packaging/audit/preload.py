"""What can be imported once for all tasks of a program, before they are forked, and what speaks against it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .program import Program

_FRAMEWORKS = ("tensorflow", "keras", "tf_keras")
# What TensorFlow, Keras and the libraries below them read when they are imported, and not again.
_READ = re.compile(
    r"(KERAS|TF|XLA|OMP|GOMP|KMP|MKL|OPENBLAS|GOTO|GOTOBLAS|BLIS|NPY|NUMPY|SCIPY|SKLEARN|JOBLIB|LOKY|HDF5|GCS|GRPC|ABSL|"
    r"PROTOCOL_BUFFERS|WRAPT|OPENSSL|LLVM|GFORTRAN)_\w+|TF2_BEHAVIOR|HOME"
)
_LATE = {"TF_CONFIG"}
# They set variables that a file names.
_FILES = {"dotenv", "environs"}
# Beside TensorFlow, the one that is imported first decides whose copy of a library both use (tensorflow#14812, #57669).
_RIVALS = {"torch", "torchvision", "torchaudio", "jax", "jaxlib", "pyarrow"}
_WRITES = {"setdefault", "update", "pop", "popitem", "clear", "__setitem__", "__delitem__"}
_UNKNOWN = ""


@dataclass(frozen=True, kw_only=True)
class Preload:
    """What could be imported once for all tasks.

    Args:
        modules: what to import, in that order.
        certain: what keeps that from being the same as importing it in each task, "" if nothing does.
        doubt: what may keep it from being the same.
        strategies: of tf.distribute that the program names, where somebody has asked for them.
        own_names: those of podlift's import names that the project has modules of.
    """

    modules: tuple[str, ...] = ()
    certain: str = ""
    doubt: str = ""
    strategies: tuple[str, ...] = ()
    own_names: tuple[str, ...] = ()


def look(program: Program, trees: Mapping[str, ast.Module], *, legacy: bool) -> Preload:
    """Return what the tasks of a program could share.

    Args:
        program: the bundle.
        trees: the modules that may run, by file.
        legacy: True where `tf.keras` is tf_keras.
    """
    imported = {
        wanted.name.partition(".")[0]: program.place(file, wanted.line)
        for file, tree in trees.items()
        for wanted in program.imports(tree, file, everywhere=True)
    }
    modules = [name for name in _FRAMEWORKS if name in imported]
    if not modules:
        return Preload(certain="the program does not import TensorFlow or Keras")
    if "tensorflow" in modules:
        modules = ["tensorflow", "tf_keras" if legacy else "keras"]
    variables = list(_set_by(program, trees))
    return Preload(modules=tuple(modules), certain=_certain(variables), doubt=_doubt(variables, imported))


def _certain(variables: Sequence[tuple[str, str]]) -> str:
    for name, place in variables:
        if _READ.fullmatch(name) and name not in _LATE:
            return f"{place} sets {name}, which is read when TensorFlow is imported"
    return ""


def _doubt(variables: Sequence[tuple[str, str]], imported: Mapping[str, str]) -> str:
    for name, place in variables:
        if name == _UNKNOWN:
            return f"{place} sets a variable whose name is not written there"
    for name in sorted(_FILES & set(imported)):
        return f"{imported[name]} imports {name}, which sets variables"
    for name in sorted(_RIVALS & set(imported)):
        return f"{imported[name]} imports {name}, which may have to come before TensorFlow"
    return ""


def _set_by(program: Program, trees: Mapping[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Yield the variables that may be set or removed, and where."""
    for file, tree in trees.items():
        if any(word in program.text(file) for word in (b"environ", b"putenv", b"unsetenv")):
            for node in ast.walk(tree):
                for name in _sets(node):
                    yield name, program.place(file, getattr(node, "lineno", 0))


def _sets(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and _is_environ(node.value):
        yield _text(node.slice)
    elif isinstance(node, ast.AugAssign) and _is_environ(node.target):
        yield from _keys(node.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
        called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        on_environ = isinstance(node.func, ast.Attribute) and _is_environ(node.func.value)
        if called == "update" and on_environ:
            for given in node.args:
                yield from _keys(given)
            yield from (word.arg or _UNKNOWN for word in node.keywords)
        elif called in ("putenv", "unsetenv") or (on_environ and called in _WRITES):
            yield _text(node.args[0]) if node.args else _UNKNOWN


def _keys(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Dict):
        yield from (_UNKNOWN if key is None else _text(key) for key in node.keys)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        yield from (word.arg or _UNKNOWN for word in node.keywords)
    else:
        yield _UNKNOWN


def _is_environ(node: ast.AST) -> bool:
    names = ("environ", "environb")
    return (isinstance(node, ast.Attribute) and node.attr in names) or (isinstance(node, ast.Name) and node.id in names)


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else _UNKNOWN
