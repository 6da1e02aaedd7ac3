"""The public names show an example first, and each example would run: its names, methods, fields and arguments exist."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import sdk
from sdk.job.values import Value
from sdk.planning.settings.keywords import MoreKeywords

# Steps of the package itself: a user registers a model by `models().add`, and no program reads the payload of a task.
WITHOUT_EXAMPLE = {"Plan.payload", "Model.add", "Model.of_run", "Model.record"}
# The words before these are the receivers of the examples.
RECEIVERS = {"sdk": sdk, "run": sdk.Run, "ctx": sdk.Context} | {name: getattr(sdk, name) for name in sdk.__all__}
SPAN = re.compile(r"`([^`]+)`")


def public(thing: type) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(thing).items()):
        inner = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if not name.startswith("_") and (inspect.isfunction(inner) or isinstance(inner, property)):
            yield name, inner


def documented() -> Iterator[tuple[str, Any]]:
    """Every public name and member."""
    for name in sdk.__all__:
        thing = getattr(sdk, name)
        yield name, thing
        # The fields of a value are for users, its methods for the backends: the reference does not have them either.
        if inspect.isclass(thing) and not issubclass(thing, Value):
            yield from ((f"{name}.{member}", value) for member, value in public(thing))


def parsed(text: str) -> ast.Module | None:
    """A piece of Python, also one that lacks its body or its beginning; None for other text."""
    for whole in (text, f"{text} pass", f"{text}: pass", f"try: pass\n{text}"):
        try:
            return ast.parse(whole)
        except SyntaxError:
            continue
    return None


def examples(thing: Any) -> list[str]:
    """The pieces of code before the arguments: a call, or an access to a member or an item."""
    text = " ".join((inspect.getdoc(thing) or "").partition("\nArgs:")[0].partition("\nRaises:")[0].split())
    return [span for span in SPAN.findall(text) if re.search(r"\w[(.\[]", span) and parsed(span)]


@dataclass
class Reader:
    """Follows the types of an example as far as the annotations of the package tell them."""

    known: dict[str, Any] = field(default_factory=lambda: dict(RECEIVERS))
    problems: set[str] = field(default_factory=set)

    def read(self, tree: ast.AST) -> None:
        for node in ast.iter_child_nodes(tree):
            # A comprehension stands after its element, which has its name.
            for loop in (node, *getattr(node, "generators", ())):
                if isinstance(loop, ast.comprehension | ast.For) and isinstance(loop.target, ast.Name):
                    self.known[loop.target.id] = element(self.kind(loop.iter))
            if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                self.known[node.name] = self.kind(node.type)
            self.read(node)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.known[node.targets[0].id] = self.kind(node.value)
            elif isinstance(node, ast.Call):
                self.call(node)
            elif isinstance(node, ast.Attribute):
                self.kind(node)

    def kind(self, node: ast.AST) -> Any:
        """The class, function or module that an expression is, or is an instance of; None if that is unknown."""
        match node:
            case ast.Name(id=name):
                return self.known.get(name)
            case ast.Attribute(value=value, attr=name):
                return self.member(self.kind(value), name)
            case ast.Call(func=function):
                called = self.kind(function)
                return called if inspect.isclass(called) else returned(called)
            case ast.Subscript(value=value):
                owner = self.kind(value)
                return returned(getattr(owner, "__getitem__", None)) if inspect.isclass(owner) else element(owner)
            case _:
                return None

    def member(self, owner: Any, name: str) -> Any:
        if owner is sdk and name not in sdk.__all__:
            self.problems.add(f"sdk has no {name}")
        if owner is sdk or not inspect.isclass(owner) or owner in (dict, list, str):
            return getattr(owner, name, None)
        value, known = getattr(owner, name, None), annotated(owner, name)
        if value is None and known is None and name not in written_in(owner):
            self.problems.add(f"{owner.__name__} has no {name}")
        if isinstance(value, property):
            return returned(value.fget)
        return value if inspect.isfunction(value) else plain(known)

    def call(self, node: ast.Call) -> None:
        called = self.kind(node.func)
        if called is None or not getattr(called, "__module__", "").startswith("sdk"):
            return
        given = {one.arg: one.value for one in node.keywords if one.arg}
        # A method has its object first; a function of a class has none.
        receiver = self.kind(node.func.value) if isinstance(node.func, ast.Attribute) else None
        own = receiver is not None and "." in called.__qualname__
        own = own and not isinstance(vars(receiver).get(called.__name__), staticmethod)
        bound = [None, *node.args] if own else node.args
        signature = inspect.signature(called)
        try:
            arguments = signature.bind(*bound, **given).arguments
        except TypeError as error:
            self.problems.add(f"{called.__name__}: {error}")
            return
        settings = set(typing.get_type_hints(MoreKeywords)) if "more" in signature.parameters else set(given)
        unknown = set(arguments.get("more", {})) - settings
        self.problems |= {f"{called.__name__} has no setting {name}" for name in unknown}


def returned(function: Any) -> Any:
    return plain(annotated(function, "return")) if inspect.isfunction(function) else None


def annotated(thing: Any, name: str) -> Any:
    """An annotation of a function or a class; object for one that names a type which only a type checker imports."""
    for owner in getattr(thing, "__mro__", (thing,)):
        if name in vars(owner).get("__annotations__", getattr(owner, "__annotations__", {})):
            one = types.SimpleNamespace(__annotations__={name: owner.__annotations__[name]})
            try:
                return typing.get_type_hints(one, globalns=vars(sys.modules[owner.__module__]))[name]
            except NameError:
                return object
    return None


def plain(kind: Any) -> Any:
    """An annotation without its None; None for any type."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        return plain(parts[0]) if len(parts) == 1 else None
    return None if kind is Any else kind


def element(kind: Any) -> Any:
    """The element of a list, an iterator or a mapping."""
    arguments = typing.get_args(kind)
    return (
        plain(arguments[-1 if "apping" in str(kind) or typing.get_origin(kind) is dict else 0]) if arguments else None
    )


def written_in(owner: type) -> set[str]:
    """The attributes that a constructor writes."""
    made = dataclasses.is_dataclass(owner) or not inspect.isfunction(owner.__init__)
    return set() if made else set(re.findall(r"self\.(\w+)", inspect.getsource(owner.__init__)))


def problems_of(text: str) -> list[str]:
    tree, reader = parsed(text), Reader()
    if tree is None:
        return ["it is not Python"]
    reader.read(tree)
    return sorted(reader.problems)


def test_every_public_class_function_and_method_shows_an_example_first() -> None:
    without = {name for name, thing in documented() if not isinstance(thing, property) and not examples(thing)}
    assert without - WITHOUT_EXAMPLE == set()
    assert WITHOUT_EXAMPLE - without == set(), "these have an example"


def test_the_examples_of_the_public_names_would_run() -> None:
    wrong = {}
    for name, thing in documented():
        spans = SPAN.findall(" ".join((inspect.getdoc(thing) or "").split()))
        for text in (span for span in spans if re.search(r"\w\(", span)):
            if problems := problems_of(text):
                wrong[f"{name}: {text}"] = problems
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('sdk.submitt("train.py")', "sdk has no submitt"),
        ('sdk.submit("train.py", worker=2)', "submit has no setting worker"),
        ("run.wait(timeout=3)", "wait: got an unexpected keyword argument 'timeout'"),
        ('sdk.attach("latest").status().stat', "Status has no stat"),
        ("for moment in run.timeline(): print(moment.when)", "Moment has no when"),
        ('sdk.models()["digits"].version(3).metric', "ModelVersion has no metric"),
        ("Retry(user_error=1)", "Retry: got an unexpected keyword argument 'user_error'"),
        ("run.wait(", "it is not Python"),
    ],
)
def test_a_wrong_example_is_found(text: str, problem: str) -> None:
    assert problems_of(text) == [problem]
