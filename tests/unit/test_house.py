"""The rules of the code: permitted imports, and forbidden constructs."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ROOT / "persia_cli"

FLOORS = (
    ("version", "errors", "metric", "cgroups"),
    ("shipped", "disk"),
    ("storage", "wire", "kernels"),
    ("config", "control", "serving.description"),
    ("store", "data", "model", "publish.version"),
    ("data.prepare", "data.inspect", "serving", "plan"),
    ("observe",),
    ("training", "loggers", "checkpoint.content"),
    ("evaluation", "rehearsal"),
    ("retrieval", "export"),
    ("roles",),
    ("engines",),
    ("jobs", "checkpoint", "bench", "sweeps"),
    ("publish", "cost", "doctor", "dashboard"),
    ("commands",),
    ("api", "main"),
    ("persia_cli", "__main__"),
)
"""Layers from the bottom up; a module imports from its package and lower layers. The longer of two names counts."""

NEVER = (
    ("control", "config"),
    ("wire", "config"),
    ("store.checkpoints", "wire"),
    ("config", "engines"),
    ("config", "roles"),
    ("store", "store.checkpoints"),
    ("store.shard", "store.recovery"),
    ("roles.coordinator.checkpoints", "storage"),
)
"""Packages, and what no module of them imports, at whatever layer it is."""

ONLY_IN = {
    "typer": ("commands", "main"),
    "rich": ("commands", "main"),
    "hydra": ("config.hydra_errors", "sweeps.grid", "config.compose", "config.origin", "config.overrides"),
    "omegaconf": ("config.hydra_errors", "config.compose", "config.replicas"),
    "torch": (
        "model",
        "training",
        "evaluation",
        "rehearsal",
        "retrieval.towers",
        "roles.nn_worker",
        "bench.baselines",
        "export",
    ),
    "safetensors": ("observe.record_state", "training", "checkpoint", "export"),
    "zmq": ("wire", "bench.delay_line"),
    "onnx": ("export",),
    "onnxruntime": ("serving",),
    "uvicorn": ("serving.http", "dashboard"),
    "starlette": ("dashboard",),
    "prometheus_client": ("loggers.prometheus",),
    "optuna": ("sweeps.search",),
    "faiss": ("retrieval.approximate",),
    "ray": ("engines.ray",),
    "tensorboard": ("loggers.tensorboard",),
    "mlflow": ("loggers.mlflow",),
    "wandb": ("loggers.wandb",),
    "trackio": ("loggers.trackio",),
    "textual": ("commands.top_screen",),
    "pyiceberg": ("data.tables", "data.follow"),
    "deltalake": ("data.tables", "data.follow"),
    "huggingface_hub": ("data.tables",),
    "confluent_kafka": ("data.land",),
    "numba": ("kernels", "training.graphs.device_queue"),
    "llvmlite": ("kernels",),
}  # fmt: skip
"""Libraries that only one part of the program may import."""

PURE = ("control", "plan", "store", "kernels")
NOT_PURE = {"asyncio", "concurrent", "datetime", "multiprocessing", "selectors", "socket", "subprocess", "threading",
            "time", "zmq"}  # fmt: skip
"""Modules that open sockets, start threads or read a clock."""

NOWHERE = {"cloudpickle", "click", "conf", "dill", "marshal", "pickle", "recipes", "shelve", "tests"}

NO_PUBLIC_NAME = {
    "torch._dynamo.callback.callback_handler",
    "torch.distributed.distributed_c10d._set_pg_timeout",
    "uvicorn.protocols.http.flow_control.FlowControl",
    "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol",
}
"""Private names of libraries that have no public counterpart."""


class Import(NamedTuple):
    """One imported module, as `module` names it."""

    module: str
    line: int
    inside: bool
    """True if the import is inside a function."""
    for_types: bool
    """True if only type checkers read the import."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> Iterator[Import]:
    """Yield the imports of a file, at its top and inside functions."""
    tree = tree_of(path)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {child for function in functions for child in ast.walk(function)}
    for_types = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, node in inside, node in for_types)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports by a relative path"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                is_module = (ROOT / whole.replace(".", "/")).with_suffix(".py").is_file()
                is_room = (ROOT / whole.replace(".", "/") / "__init__.py").is_file()
                yield Import(
                    whole if is_module or is_room else node.module, node.lineno, node in inside, node in for_types
                )


def name_of(path: Path) -> str:
    """The module in a file of the program, without the leading `persia_cli.`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts).removeprefix("persia_cli.")


def is_within(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def room_of(module: str) -> tuple[int, str]:
    """The layer and the package of a module of the program."""
    found = [
        (len(room), floor, room) for floor, rooms in enumerate(FLOORS) for room in rooms if is_within(module, (room,))
    ]
    assert found, f"{module} is in no package; the layers are {FLOORS}"
    _, floor, room = max(found)
    return floor, room


FILES = sorted(CODE.rglob("*.py"))
ALL_IMPORTS = [(name_of(path), found) for path in FILES for found in imports_of(path)]
IMPORTS = [(module, found) for module, found in ALL_IMPORTS if not found.for_types]


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    """All nodes of the syntax of the program, with their files."""
    return [(path, node) for path in FILES for node in ast.walk(tree_of(path))]


def calls(*names: str) -> list[tuple[Path, ast.Call]]:
    """All calls of functions and methods with these names, the last of a dotted one."""
    return [
        (path, node)
        for path, node in nodes()
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in names
    ]


def where(module: str, found: Import) -> str:
    return f"{module}, line {found.line}: {found.module}"


def test_there_is_a_house():
    assert len(FILES) > 80
    assert len(IMPORTS) > 400
    assert {room_of(name_of(path))[0] for path in FILES} == set(range(len(FLOORS)))
    assert len(FLOORS) <= 17


def test_a_module_imports_only_from_its_own_or_lower_layers():
    wrong = []
    for module, found in ALL_IMPORTS:
        if found.module.partition(".")[0] != "persia_cli":
            continue
        own_floor, own_room = room_of(module)
        floor, room = room_of(found.module.removeprefix("persia_cli."))
        if not (room == own_room or floor < own_floor):
            wrong.append(where(module, found))
    assert wrong == []


def test_commands_import_no_commands():
    """Only the entry point does; they share the printing, the options, and the functions of `jobs`."""
    of_main = {found.module for module, found in ALL_IMPORTS if module == "main"}
    commands = {name for name in of_main if name.startswith("persia_cli.commands.")}
    commands -= {f"persia_cli.commands.{name}" for name in ("options", "parser", "screen")}
    assert len(commands) > 20
    assert [where(*pair) for pair in ALL_IMPORTS if pair[0] != "main" and pair[1].module in commands] == []


@pytest.mark.parametrize(("package", "other"), NEVER)
def test_a_package_never_knows_another(package, other):
    wrong = [
        where(module, found)
        for module, found in ALL_IMPORTS
        if is_within(module, (package,)) and not is_within(module, (other,))
        if is_within(found.module.removeprefix("persia_cli."), (other,))
    ]
    assert wrong == []


def test_a_base_class_knows_no_package_of_its_subclasses():
    classes = {node.name: (name_of(path), node) for path, node in nodes() if isinstance(node, ast.ClassDef)}
    wrong = []
    for module, node in classes.values():
        package = (module.rpartition(".")[0],)
        for base in (classes[name][0] for name in map(ast.unparse, node.bases) if name in classes):
            known = [pair for pair in ALL_IMPORTS if pair[0] == base and not is_within(base, package)]
            wrong += [where(*pair) for pair in known if is_within(pair[1].module.removeprefix("persia_cli."), package)]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle():
    """Nor by imports inside functions and for type checkers; `graphlib` names the modules in its CycleError."""
    needed: dict[str, set[str]] = {name_of(path): set() for path in FILES}
    for module, found in ALL_IMPORTS:
        if found.module.partition(".")[0] == "persia_cli":
            needed[module].add(found.module.removeprefix("persia_cli."))
    TopologicalSorter(needed).prepare()
    needed["errors"].add("main")
    with pytest.raises(CycleError):
        TopologicalSorter(needed).prepare()


def test_no_two_classes_have_the_same_name():
    where_defined: dict[str, list[str]] = {}
    for path, node in nodes():
        if isinstance(node, ast.ClassDef):
            where_defined.setdefault(node.name, []).append(name_of(path))
    assert {name: modules for name, modules in where_defined.items() if len(modules) > 1} == {}


def test_no_file_of_the_package_is_longer_than_600_lines():
    assert [path.name for path in FILES if len(path.read_text().splitlines()) > 600] == []


def test_only_the_schema_and_the_table_of_engines_ask_for_the_kind_of_a_cluster():
    """All else asks the engine (`engine_of`), or a property of the settings, such as `cluster.is_spread`."""
    asking = ("config.schema", "engines.engine")
    kinds = {"embedded", "hosts", "kubernetes", "local", "ray", "slurm"}
    wrong = []
    for path, node in nodes():
        of_a_cluster = isinstance(node, ast.Attribute) and node.attr == "kind" and "cluster" in ast.unparse(node.value)
        texts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        texts += [node.value] if isinstance(node, ast.MatchValue) else []
        compared = any(isinstance(text, ast.Constant) and text.value in kinds for text in texts)
        if (of_a_cluster or (compared and "filesystem" not in ast.unparse(node))) and not is_within(
            name_of(path), asking
        ):
            wrong.append(f"{name_of(path)}, line {node.lineno}: {ast.unparse(node)}")
    for path, call in calls("isinstance"):
        if re.search(r"\w(Cluster|Replicas)\b", ast.unparse(call)) and not is_within(name_of(path), asking):
            wrong.append(f"{name_of(path)}, line {call.lineno}: {ast.unparse(call)}")
    assert wrong == []


def test_files_get_their_names_in_one_place():
    """`disk.rename` syncs a file before it has its name, and the folder after."""
    names = ("os.rename", "os.replace", "os.renames", "os.link", "shutil.move")
    wrong = []
    for path, node in calls("rename", "replace", "renames", "hardlink_to", "link", "move"):
        last = getattr(node.func, "attr", "")
        of_a_path = last in ("rename", "replace", "hardlink_to") and len(node.args) + len(node.keywords) == 1
        if name_of(path) != "disk" and (of_a_path or ast.unparse(node.func) in names):
            wrong.append(f"{path}:{node.lineno}")
    assert wrong == []


def test_libraries_stay_in_their_packages():
    wrong = [
        where(module, found)
        for module, found in IMPORTS
        if not is_within(module, ONLY_IN.get(found.module.partition(".")[0], (module,)))
    ]
    assert wrong == []


def test_only_public_names_of_libraries_are_imported():
    """Uvicorn's protocols are as private as names with an underscore, though they have none."""
    wrong = []
    for path, node in nodes():
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *others = name.split(".")
            is_private = any(part.startswith("_") or part == "protocols" for part in others)
            if first not in ("persia_cli", "__future__") and is_private and name not in NO_PUBLIC_NAME:
                wrong.append(f"{name_of(path)}, line {node.lineno}: {name}")
    assert wrong == []


def test_kernels_import_numba_llvmlite_and_numpy_alone():
    allowed = {"persia_cli", "numba", "llvmlite", "numpy", *sys.stdlib_module_names}
    kernels = [(module, found) for module, found in IMPORTS if is_within(module, ("kernels",))]
    assert [where(*pair) for pair in kernels if pair[1].module.partition(".")[0] not in allowed] == []
    assert any(found.module == "numba" for _, found in kernels)


def test_pure_packages_have_no_sockets_threads_or_clocks():
    wrong = [
        where(module, found)
        for module, found in IMPORTS
        if is_within(module, PURE) and found.module.partition(".")[0] in NOT_PURE
    ]
    assert wrong == []


def test_nothing_imports_pickle_or_what_is_no_part_of_the_program():
    assert [where(module, found) for module, found in IMPORTS if found.module.partition(".")[0] in NOWHERE] == []


def test_nothing_unpickles():
    unpickling = ("torch.load", "torch.save", "eval", "exec")
    found = calls("load", "save", "eval", "exec")
    assert [f"{path}:{node.lineno}" for path, node in found if ast.unparse(node.func) in unpickling] == []
    keywords = [(path, node) for path, node in nodes() if isinstance(node, ast.keyword)]
    assert [f"{path}:{node.value.lineno}" for path, node in keywords if node.arg == "allow_pickle"] == []


def test_decoders_are_made_when_their_module_is_imported():
    """msgspec crashes the process if two threads decode a type for the first time at the same moment."""
    inside = {child for _, node in nodes() if isinstance(node, ast.FunctionDef) for child in ast.walk(node)}
    decoding = ("msgspec.json.decode", "msgspec.msgpack.decode")
    wrong = [
        f"{path}:{node.lineno}"
        for path, node in calls("decode", "Decoder")
        if node in inside and (ast.unparse(node.func) in decoding or ast.unparse(node.func).endswith(".Decoder"))
    ]
    assert wrong == []


def test_embedded_launching_imports_roles_inside_its_function():
    roles = [found for module, found in IMPORTS if module == "engines.embedded" and "roles" in found.module]
    assert roles
    assert all(found.inside for found in roles)


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*/*.py")), ids=lambda path: path.parent.name)
def test_recipes_import_only_what_reads_and_prepares_data(path):
    ours = [found.module for found in imports_of(path) if found.module.partition(".")[0] == "persia_cli"]
    assert bool(ours) == (path.name == "prepare.py"), "other programs start commands"
    assert [module for module in ours if not is_within(module, ("persia_cli.data",))] == []


def test_every_module_has_a_docstring_of_one_line():
    texts = {name_of(path): ast.get_docstring(tree_of(path)) or "" for path in FILES}
    assert [name for name, text in texts.items() if not text.partition("\n")[0].endswith(".")] == []


@pytest.mark.parametrize("role", ["embedding_server", "embedding_worker", "data_loader", "coordinator"])
def test_only_the_nn_worker_loads_torch(role):
    program = f"import sys, persia_cli.roles.{role}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert f"persia_cli.roles.{role}" in loaded
    assert {"torch", "hydra", "omegaconf", "rich", "typer"} & set(loaded) == set()
