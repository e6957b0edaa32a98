"""The rules of the house: who may import whom, what only some rooms may do, and how long things may be."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "persia_cli"

HOLLOW = ("persia_cli", "config")
"""Packages that are no rooms themselves: they hold rooms, and anyone may name them."""
ORDER = (
    set(HOLLOW),
    {"errors"},
    {"share"},
    {"config.schema"},
    {"config.expected"},
    {"config.explain"},
    {"config.record"},
    {"kernels", "wire", "control"},
    {"store", "data", "model"},
    {"plan"},
    {"observe"},
    {"train"},
    {"roles"},
    {"launch"},
    {"bench"},
    {"config.offers", "config.search_path", "config.words"},
    {"config.broken"},
    {"config.compose"},
    {"commands"},
    {"main"},
    {"__main__"},
)
"""The rooms: a module imports from its own and from those of earlier lines, not from its neighbours in a line."""
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}

LATE_CONFIG = ("config.search_path", "config.words", "config.broken", "config.compose")
TORCH = ("model", "train", "roles.nn_worker", "bench.rivals")
ONLY_IN = {
    "typer": ("commands", "main"),
    "click": ("commands", "main"),
    "rich": ("commands", "main"),
    "hydra": LATE_CONFIG,
    "omegaconf": LATE_CONFIG,
    "torch": TORCH,
    "safetensors": ("train",),
    "zmq": ("wire",),
    "numba": ("kernels",),
    "llvmlite": ("kernels",),
}
"""Libraries that few rooms may know."""
EFFECTS = {
    "zmq", "socket", "socketserver", "selectors", "ssl", "http", "urllib", "threading", "_thread", "queue",
    "concurrent", "multiprocessing", "subprocess", "signal", "asyncio", "time", "datetime", "sched", "timeit",
}  # fmt: skip
"""Modules that open sockets, start threads or processes, or read a clock."""
PURE = ("control", "plan", "store", "kernels")
KERNELS_MAY = {"numba", "llvmlite", "numpy", PACKAGE} | set(sys.stdlib_module_names)
UNSAFE_MODULES = {"pickle", "_pickle", "cPickle", "pickletools", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
PICKLING = {"send_pyobj", "recv_pyobj", "all_gather_object", "gather_object", "broadcast_object_list",
            "scatter_object_list", "send_object_list", "recv_object_list"}  # fmt: skip
"""Methods and functions of libraries we use that pickle what they send."""
OUTSIDE = {"conf", "recipes", "scripts", "tests"}
FILE_LINES, FUNCTION_LINES = 400, 70


class Import(NamedTuple):
    """One module that a file imports: `lazy` if only once a function is called."""

    target: str
    line: int
    lazy: bool


class Source(NamedTuple):
    """A Python file, by its path from the root of the checkout, its dotted name and its syntax tree."""

    path: str
    module: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The room that a module of persia_cli is in."""
        return room_of(self.module)


def read(folder: str, pattern: str = "**/*.py") -> list[Source]:
    sources = []
    for path in sorted((ROOT / folder).glob(pattern)):
        name = path.relative_to(ROOT)
        module = ".".join(name.with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text(encoding="utf-8")
        sources.append(Source(str(name), module, text, ast.parse(text)))
    return sources


SOURCES = read(PACKAGE)
RECIPES = read("recipes", "*/prepare.py")
MODULES = {source.module for source in SOURCES}


def room_of(module: str) -> str:
    """Return the room of a module of persia_cli: the longest name of `ORDER` that it begins with."""
    within = module.removeprefix(PACKAGE).removeprefix(".") or PACKAGE
    fitting = [room for room in RANK if within == room or (within.startswith(f"{room}.") and room not in HOLLOW)]
    return max(fitting, key=len) if fitting else f"no room has {module}"


def imports_of(source: Source) -> list[Import]:
    """Return all that a file imports, but for what only a type checker sees; `from package import module` names both.

    Relative imports show as names that begin with a dot.
    """
    found: list[Import] = []

    def visit(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for otherwise in node.orelse:
                visit(otherwise, lazy)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            parts = [f"{base}.{alias.name}" for alias in node.names]
            targets = [part if part in MODULES else base for part in parts]
            found.extend(Import(target, node.lineno, lazy) for target in dict.fromkeys(targets))
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(source.tree, False)
    return found


def within(source: Source, rooms: tuple[str, ...]) -> bool:
    name = source.module.removeprefix(f"{PACKAGE}.")
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def imported(sources: list[Source]) -> Iterator[tuple[Source, Import, str]]:
    """Yield every import of the files with the top of its dotted name."""
    for source in sources:
        for found in imports_of(source):
            yield source, found, found.target.partition(".")[0]


def calls(sources: list[Source]) -> Iterator[tuple[Source, ast.Call, str]]:
    """Yield every call in the files with what is called, as written."""
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call):
                yield source, node, ast.unparse(node.func)


def definitions(
    sources: list[Source],
) -> Iterator[tuple[Source, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield source, node


def public(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield the public classes, functions and methods of a module or a class."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public(child)


def test_every_module_is_in_a_room_and_every_room_is_used() -> None:
    assert {source.room for source in SOURCES} == set(RANK)
    assert [s.path for s in SOURCES if s.room in HOLLOW and imports_of(s)] == []


def test_modules_import_only_from_earlier_rooms() -> None:
    broken = []
    for source, found, top in imported(SOURCES):
        if top != PACKAGE:
            continue
        room = room_of(found.target)
        if room != source.room and not RANK.get(room, len(ORDER)) < RANK.get(source.room, -1):
            broken.append(f"{source.path}:{found.line}: {source.room} imports {found.target}")
    assert broken == []


def test_imports_are_absolute_and_stay_inside_the_package() -> None:
    assert [
        f"{source.path}:{found.line}: {found.target}"
        for source, found, top in imported(SOURCES)
        if found.target.startswith(".") or top in OUTSIDE
    ] == []


def test_libraries_stay_in_their_rooms() -> None:
    assert [
        f"{source.path}:{found.line}: {found.target}"
        for source, found, top in imported(SOURCES)
        if top in ONLY_IN and not within(source, ONLY_IN[top])
    ] == []


def test_only_torch_rooms_load_torch_through_others() -> None:
    direct: dict[str, set[str]] = {}
    for source, found, _ in imported(SOURCES):
        if not found.lazy:
            direct.setdefault(source.module, set()).add(found.target)
    loading = {module for module, targets in direct.items() if any(t.partition(".")[0] == "torch" for t in targets)}
    grown = True
    while grown:
        more = {module for module, targets in direct.items() if targets & loading}
        grown = not more <= loading
        loading |= more
    assert f"{PACKAGE}.roles.nn_worker" in loading
    assert [source.path for source in SOURCES if source.module in loading and not within(source, TORCH)] == []


def test_kernels_import_numba_and_numpy_alone() -> None:
    kernels = [source for source in SOURCES if source.room == "kernels"]
    assert [
        f"{source.path}:{found.line}: {found.target}"
        for source, found, top in imported(kernels)
        if top not in KERNELS_MAY or (top == PACKAGE and room_of(found.target) != "kernels")
    ] == []


def test_pure_rooms_have_no_sockets_threads_or_clocks() -> None:
    pure = [source for source in SOURCES if within(source, PURE)]
    assert {source.room for source in pure} == set(PURE)
    assert [
        f"{source.path}:{found.line}: {found.target}" for source, found, top in imported(pure) if top in EFFECTS
    ] == []


def test_nothing_pickles_or_evaluates_text() -> None:
    everything = SOURCES + RECIPES + read("scripts")
    assert [
        f"{source.path}:{found.line}: {found.target}"
        for source, found, top in imported(everything)
        if top in UNSAFE_MODULES
    ] == []
    unsafe = []
    for source, call, name in calls(everything):
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if (
            name in UNSAFE_CALLS
            or name.rpartition(".")[2] in PICKLING
            or (name == "torch.load" and options.get("weights_only") != "True")
            or options.get("allow_pickle", "False") != "False"
        ):
            unsafe.append(f"{source.path}:{call.lineno}: {name}")
    assert unsafe == []


def test_recipes_know_persia_data_numpy_and_pyarrow_alone() -> None:
    assert len(RECIPES) >= 2
    allowed = {"numpy", "pyarrow"} | set(sys.stdlib_module_names) - EFFECTS
    assert [
        f"{source.path}:{found.line}: {found.target}"
        for source, found, top in imported(RECIPES)
        if top not in allowed and not found.target.startswith(f"{PACKAGE}.data.")
    ] == []


def test_files_and_functions_are_short() -> None:
    everything = SOURCES + RECIPES + read("scripts")
    long = [f"{s.path}: {lines} lines" for s in everything if (lines := len(s.text.splitlines())) > FILE_LINES]
    for source, node in definitions(everything):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if not isinstance(node, ast.ClassDef) and lines > FUNCTION_LINES:
            long.append(f"{source.path}:{node.lineno}: {node.name} has {lines} lines")
    assert long == []


def test_nothing_is_left_for_later() -> None:
    marks = ("TODO", "FIXME", "XXX")
    assert [
        f"{source.path}:{number}: {line.strip()}"
        for source in SOURCES + RECIPES + read("scripts")
        for number, line in enumerate(source.text.splitlines(), 1)
        if any(mark in line for mark in marks)
    ] == []


def test_all_that_is_public_says_what_it_is() -> None:
    silent = [source.path for source in SOURCES + RECIPES if not ast.get_docstring(source.tree)]
    for source in SOURCES + RECIPES:
        silent += [
            f"{source.path}:{node.lineno}: {node.name}" for node in public(source.tree) if not ast.get_docstring(node)
        ]
    assert silent == []


def loaded_by(*modules: str) -> set[str]:
    """Return the libraries that a fresh Python has loaded once it imported the modules."""
    program = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(ended.stdout.split())


@pytest.mark.parametrize("role", ["coordinator", "data_loader", "embedding_server", "embedding_worker"])
def test_role_processes_but_nn_workers_load_nothing_heavy(role: str) -> None:
    loaded = loaded_by(f"{PACKAGE}.main", f"{PACKAGE}.launch.role", f"{PACKAGE}.roles.{role}")
    assert "zmq" in loaded
    assert loaded & {"torch", "hydra", "omegaconf", "rich"} == set()
