from __future__ import annotations

import ast
import functools
import itertools
import json
import linecache
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import REPO

import sdk
from sdk.packaging.source.functions import FunctionModule, function_module, import_name

pytestmark = [pytest.mark.process]

COUNTER = itertools.count()


def notebook(*cells: str) -> dict[str, Any]:
    """Run cells as IPython does: statement by statement, their text kept by linecache under a name that is no file."""
    scope: dict[str, Any] = {"__name__": "__main__", "In": ["", *cells]}
    flags = 0
    for name in [name for name in linecache.cache if name.startswith("/tmp/ipykernel_7/")]:
        del linecache.cache[name]
    for cell in cells:
        name = f"/tmp/ipykernel_7/{next(COUNTER)}.py"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        if "from __future__ import annotations" in cell:
            flags = 0x1000000
        for node in ast.parse(cell, name).body:
            exec(compile(ast.Module([node], []), name, "exec", flags, dont_inherit=True), scope)
    return scope


def elsewhere(module: FunctionModule, tmp_path: Path, **kwargs: Any) -> Any:
    """The value of the function in a Python that has only its module; the repr of it, as a value."""
    (tmp_path / "moved.py").write_text(module.text, encoding="utf-8")
    code = f"import sys, json; sys.path.insert(0, {str(tmp_path)!r}); import moved; "
    code += f"print(ascii(moved.{module.name}(**json.loads({json.dumps(kwargs)!r}))))"
    done = subprocess.run([sys.executable, "-I", "-B", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + module.text
    return ast.literal_eval(done.stdout.splitlines()[-1])


def loaded(module: FunctionModule) -> Any:
    """The value of the function in a namespace that has only its module."""
    space: dict[str, Any] = {"__name__": "moved"}
    exec(compile(module.text, "moved.py", "exec"), space)
    return space[module.name]()


def problems(function: object) -> str:
    with pytest.raises(sdk.InputError) as caught:
        function_module(function)  # type: ignore[arg-type]
    return str(caught.value)


DECORATED = """
import functools
def twice(f):
    @functools.wraps(f)
    def inner(*args, **kwargs):
        return scale(f(*args, **kwargs))
    return inner
def scale(n): return FACTOR * n
FACTOR = 2
@twice
@functools.lru_cache(maxsize=SIZE)
def main(n=5): return n
"""


@pytest.mark.parametrize(
    ("cells", "value"),
    [
        (["import math as m\ndef main(): return m.floor(2.5)"], 2),
        (["import xml.etree.ElementTree\ndef main(): return xml.etree.ElementTree.fromstring('<a/>').tag"], "a"),
        (["from os.path import join as j\ndef main(): return j('a', 'b')"], "a/b"),
        (["A = [1]\nB = A\ndef main():\n A.append(2)\n return B"], [1, 2]),
        (["def even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n > 0 and even(n - 1)\n"
          "def main(): return even(8)"], True),
        (["class A:\n x = 1\nclass B(A):\n def f(self): return super().__class__, self.x\n"
          "def main(): return B().f()[1]"], 1),
        (["import dataclasses\n@dataclasses.dataclass\nclass C:\n n: int = 3\ndef main(): return C().n"], 3),
        (["def main(*, n: int = 2) -> 'int': return n"], 2),
        (["STEPS = 3\ndef main(n=STEPS, *, é='ü', k=(STEPS, 'é')): return n, k, é", "STEPS = 4"], (3, (3, "é"), "ü")),
        (["def f(n): return n + 1\nTABLE = {'f': f, 'max': max}\n"
          "def main(): return TABLE['f'](TABLE['max'](1, 2))"], 3),
        (["total = 1\ndef main():\n global total, fresh\n total += 1\n fresh = 5\n return total + fresh"], 7),
        (["BIG = 10 ** 5000\ndef main(): return BIG % 97, -BIG % 7"], (pow(10, 5000, 97), -(10**5000) % 7)),
        (["def main(): return __name__"], "moved"),
        (["class CFG:\n lr = 1\n names = ['a']\n"
          "def main(): return CFG.lr, CFG.names, CFG.new",
          "CFG.lr, CFG.new = 2, 3; CFG.names.append('b')"], (2, ["a", "b"], 3)),
        (["def count(): return count.calls\ncount.calls = 4\ndef main(): return count()"], 4),
        (["import enum, typing\nclass C(enum.Enum):\n RED = 1\nclass P(typing.NamedTuple):\n n: int = 2\n"
          "def main(): return C(1).name, P().n"], ("RED", 2)),
        (["from abc import ABC, abstractmethod\nclass A(ABC):\n @abstractmethod\n def f(self): ...\n"
          "class B(A):\n @property\n def f(self): return K\n @staticmethod\n def g(): return [K for _ in range(K)]\n"
          "K = 2\ndef main(): return B().f, B.g()"], (2, [2, 2])),
        (["def note(f):\n LOG.append(f.__name__)\n return f\nLOG = []\n@note\n"
          "def main(): return LOG", "LOG.clear()"], ["main"]),
        (["def deco(f):\n assert ready()\n return f\ndef ready(): return FLAG\nFLAG = True\n@deco\n"
          "def step(): return 1\ndef main(): return ready(), step()"], (True, 1)),
        (["class Base:\n def kids(self): return [Kid]\nclass Kid(Base): pass\n"
          "def main(): return [k.__name__ for k in Kid().kids()]"], ["Kid"]),
        (["def make(n):\n class Net:\n  def size(self): return n, super().__repr__()[:1]\n return Net\n"
          "Net = make(3)\ndef main(): return Net().size()"], (3, "<")),
        (["class A: pass", "class A:\n x = 1\n _y = 2", "def main(): return A._y"], 2),
        (["print = 3\ndef main(): return print"], 3),
        (["# coding: latin-1\nWORD = 'é'\ndef main(): return WORD + 'ß'"], "éß"),
        (["from __future__ import annotations",
          "def main(x: NotThere = 1) -> Never: return main.__annotations__"], {"x": "NotThere", "return": "Never"}),
        (["T = int", "def main(x: T = 1): return main.__annotations__['x'].__name__"], "int"),
        (["def make():\n\tdef inner():\n\t\treturn '''a\n\tb\nc'''\n\treturn inner\nmain = make()\n"], "a\n\tb\nc"),
        (["SIZE = 8", DECORATED], 10),
        (["import logging, re\nfrom pathlib import Path, PurePosixPath\n"
          "DATA, PURE, PLACES = Path('data') / 'x.csv', PurePosixPath('/a'), {'one': Path('1')}\n"
          "log, WORD = logging.getLogger('training'), re.compile('[a-z]+', re.IGNORECASE)\n"
          "def main():\n"
          " return [str(DATA), str(PURE), log.name, WORD.findall('Ab 1'), str(PLACES['one']), type(DATA).__name__]"],
         ["data/x.csv", "/a", "training", ["Ab"], "1", "PosixPath"]),
    ],
)  # fmt: skip
def test_a_function_of_a_notebook_gives_the_same_in_another_process(cells: list[str], value: Any, tmp_path) -> None:
    scope = notebook(*cells)
    module = function_module(scope["main"])
    assert elsewhere(module, tmp_path) == value
    assert function_module(scope["main"]) == module


def test_closures_of_one_function_keep_their_own_values(tmp_path: Path) -> None:
    text = """
def make(rate, seen):
    def again(n):
        return again(n - 1) if n else rate
    def step():
        seen.append(rate)
        return again(2)
    return step
log = []
slow, fast = make(1, log), make(2, log)
def main():
    return [slow(), fast(), log]
"""
    scope = notebook(text)
    assert elsewhere(function_module(scope["main"]), tmp_path) == [1, 2, [1, 2]]
    (tmp_path / "alone").mkdir()
    assert elsewhere(function_module(scope["fast"]), tmp_path / "alone") == 2
    assert function_module(scope["fast"]).values == ("rate", "seen")


def test_a_wrapper_that_keeps_its_function_is_written_with_its_decorator(tmp_path, monkeypatch) -> None:
    text = "class function:\n def __init__(self, f): self.python_function = f\n"
    text += " def __call__(self, *args): return self.python_function(*args), 'graph'\n"
    (tmp_path / "fakeflow.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    cell = "import fakeflow as ff\n@ff.function\ndef step(n): return n\ndef main(): return step(1)\n"
    cell += "made = ff.function(main)"
    scope = notebook(cell)
    assert elsewhere(function_module(scope["main"]), tmp_path) == (1, "graph")
    assert function_module(scope["step"]).name == "step"
    assert "it is 'main' renamed, wrapped or defined again" in problems(scope["made"])


def test_a_projects_own_modules_are_imported_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "class Net: size = 4\ndef build(): return Net()\nlock = __import__('threading').Lock()\n"
    (tmp_path / "helping.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    main = "def main():\n with lock: return b().size, helping.Net is Net"
    scope = notebook(f"import helping\nfrom helping import build as b, lock, Net\n{main}")
    module = function_module(scope["main"])
    assert module.modules == ("helping",)
    assert "class Net" not in module.text
    assert elsewhere(module, tmp_path) == (4, True)
    assert import_name(scope["b"]) == "helping:build"


def test_a_closure_of_an_importable_module_takes_the_rest_from_there(tmp_path, monkeypatch) -> None:
    make = "def make(n):\n def main():\n  note(n)\n  return SEEN\n return main\n"
    (tmp_path / "owner.py").write_text(f"SEEN = []\ndef note(n): SEEN.append(n)\n{make}")
    monkeypatch.syspath_prepend(str(tmp_path))
    main = __import__("owner").make(3)
    assert import_name(main) is None
    assert elsewhere(function_module(main), tmp_path) == [3]


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
json_values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)
exact_values = st.recursive(
    plain | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(plain, inner) | st.sets(plain),
    max_leaves=12,
)


@settings(max_examples=50)
@given(json_values | exact_values, json_values)
@example([(), set()], {})
def test_values_of_globals_closures_and_defaults_arrive_as_they_were(one: Any, two: Any) -> None:
    scope = notebook("def make(two):\n def main(three=two):\n  return one, two, three\n return main")
    scope["one"] = one
    values = loaded(function_module(scope["make"](two)))
    assert values == (one, two, two)
    assert types(values) == types((one, two, two))


def types(value: Any) -> Any:
    if isinstance(value, dict):
        return {types(key): types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (type(value), *map(types, value))
    if isinstance(value, (set, frozenset)):
        return (type(value), frozenset(map(types, value)))
    return (type(value), str(value))


def test_all_that_cannot_be_sent_is_named_at_once(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    scope = notebook(
        "import threading\nlock = threading.Lock()\n",
        "def main():\n return lock, file, array, table, helpr, helper()\ndef helper(): return one\n",
    )
    (tmp_path / "data").write_text("")
    with (tmp_path / "data").open() as file:
        scope |= {"file": file, "array": numpy.zeros((2, 3)), "one": numpy.float32(1)}
        scope["table"] = {"deep": [float("nan"), object()], "big": "x" * 2_000_000}
        said = problems(scope["main"]).splitlines()
    assert said[0] == "8 problems:"
    text = "\n".join(sorted(said))
    for part in (
        "'lock' cannot be sent, used in main (line 2 of its cell): it is a _thread.lock. Next: make it inside",
        "'file' cannot be sent, used in main (line 2 of its cell): it is a _io.TextIOWrapper. Next: make it inside",
        "'array' cannot be sent, used in main (line 2 of its cell): it is a numpy.ndarray of shape (2, 3). Next: make it",
        "\"table['deep'][0]\" cannot be sent, used in main (line 2 of its cell): it is a float (nan)",
        "\"table['deep'][1]\" cannot be sent, used in main (line 2 of its cell): it is a object",
        "\"table['big']\" cannot be sent, used in main (line 2 of its cell): its text is longer than 1 MB",
        "'helpr' cannot be sent, used in main (line 2 of its cell): it is not defined. Next: write 'helper'",
        "'one' cannot be sent, used in helper (line 3 of its cell): it is a numpy.float32",
    ):
        assert part in text


class Callable_:
    def __call__(self) -> None: ...
    def method(self) -> None: ...


async def waiting() -> None: ...


def yielding() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: 1, "is a lambda, which has no name. Next: give one that is written with `def`"),
        (functools.partial(waiting, lr=0.1), "is a functools.partial. Next: give its function, and args={'lr': ...}"),
        (Callable_().method, "is a bound method"),
        (Callable_(), "this Callable_ is an instance with __call__"),
        (Callable_, "is a class"),
        (len, "len is a builtin"),
        (waiting, "is an async function: calling it would run nothing. Next: give a plain function that calls asyncio"),
        (yielding, "is a generator: calling it would run nothing. Next: give one without `yield`"),
        (None, "this NoneType is not a function"),
    ],
)
def test_an_object_that_cannot_be_the_function_of_a_task_says_why(function: object, said: str) -> None:
    assert said in problems(function)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["f = lambda: 1\n"
          "def main(): f()"], "'f' cannot be sent, used in main (line 2 of its cell): it is <lambda>, which has no"),
        (["def d(f):\n def g(): return f()\n return g\n@d\n"
          "def main(): pass"], "'main' renamed, wrapped or defined again"),
        (["def main(): pass\nold = main", "def main(): pass", "main = old\n"
          "def main(): return old"], "'old' cannot be sent"),
        (["def make():\n n = 0\n def main():\n  nonlocal n\n  n += 1\n return main\n"
          "main = make()"], "changed by `nonlocal`"),
        (["lr = 1\ndef make(lr):\n @print_it(lr)\n def main(): pass\n return main\n"
          "def print_it(n): return lambda f: f\nmain = make(2)"], "existed only while"),
        (["class A:\n def f(self): pass\nf = A.f\ndef main(): f()"], "it is A.f, which has no separate definition"),
        (["class A: pass\na = A()\ndef main(): return a"], "it is a __main__.A. Next: make it inside the function"),
        (["class A: pass\ndef f(self): pass\nA.f = f\n"
          "def main(): return A"], "'A.f' cannot be sent, used in main (line 4 of its cell): it was added later"),
        (["import functools\n@functools.lru_cache\ndef f(n): return n\ng = functools.lru_cache(f)\n"
          "def main(): return g(1)"], "it is 'f' renamed, wrapped or defined again"),
        (["def main(): return eval_it(1)\neval_it = eval('lambda n: n')"], "which has no separate definition"),
        (["from functools import singledispatch\n@singledispatch\ndef f(x): return 0\n@f.register\n"
          "def _(x: int): return 1\ndef main(): return f(2)"], "the result of a call"),
        (["REG = {}\ndef reg(f):\n REG[f.__name__] = f\n return f\n@reg\ndef one(): return 1\n"
          "def main(): return REG['one']()"], "These need each other while they are defined: one, REG"),
        (["exec('def f(): return 1')\ndef main(): return f()"], "its text was changed since, or is not kept anywhere"),
        (["class A: pass", "class A: x = 1", "def main(): return A\nIn = []"], "several cells define it"),
        (["loop = []\nloop.append(loop)\ndef main(): return loop"], "holds itself"),
        (["import types\nmade = types.ModuleType('made')\ndef main(): return made"], "it is a module"),
        (["def make():\n def a(): return b()\n def b(): return a()\n return a\n"
          "main = make()"], "These need each other while they are defined: _b_1, a"),
    ],
)  # fmt: skip
def test_a_value_that_would_differ_elsewhere_is_refused(cells: list[str], said: str) -> None:
    assert said in problems(notebook(*cells)["main"])


def test_a_function_inside_a_test_can_be_written_although_pytest_changes_its_asserts(tmp_path: Path) -> None:
    def inner(n: int) -> int:
        assert n > 0
        return n

    assert elsewhere(function_module(inner), tmp_path, n=2) == 2


def test_a_file_that_was_changed_since_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "changing.py"
    path.write_text("def make():\n def main(): return 1\n return main\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    main = __import__("changing").make()
    path.write_text("def make():\n def main(): return 2\n def other(): return 1\n return main\n")
    linecache.clearcache()
    assert "its text was changed since, or is not kept anywhere. Next: define it in a file" in problems(main)
    path.write_text("def make(:")
    linecache.clearcache()
    assert "its text was changed since" in problems(main)


def run(*command: str, cwd: Path, text: str = "") -> str:
    env = {"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=env, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_and_a_module_run_by_its_name_know_their_functions(tmp_path: Path) -> None:
    text = "import sys\nfrom sdk.packaging.source.functions import import_name, function_module\n"
    text += "class C: pass\ndef main(): return C.__name__\n"
    text += "if __name__ == '__main__':\n"
    text += " found = function_module(main)\n"
    text += " print(import_name(main), 'def main' in found.text, found.file.endswith('train.py'))\n"
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text(text)
    assert run("pkg/train.py", cwd=tmp_path) == "None True True\n"
    assert run("-m", "pkg.train", cwd=tmp_path) == "pkg.train:main True True\n"


def test_a_function_typed_without_source_is_refused(tmp_path: Path) -> None:
    text = "from sdk.packaging.source.functions import function_module\ndef main(): pass\ntry: function_module(main)\n"
    said = run("-", cwd=tmp_path, text=f"{text}except ValueError as e: print(e)\n")
    assert (
        "'main' cannot be sent: its text was changed since, or is not kept anywhere. Next: define it in a file" in said
    )


def test_only_functions_that_their_name_leads_to_are_import_name() -> None:
    assert import_name(problems) == f"{__name__}:problems"
    assert import_name(threading.Thread.start) is None
    assert import_name(notebook("def main(): pass")["main"]) is None
    assert import_name(functools.wraps(problems)(lambda: 1)) is None
