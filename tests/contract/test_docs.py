"""The pages of docs/ describe the checkout that contains them, and their commands work.

A block of commands (`sh`) or of Python has a mark before it, which names its check:

    <!-- run -->        run in an empty folder, after the page's other blocks of this mark
    <!-- run slow -->   the same, where slow tests run
    <!-- run with LIBRARY -->  the same as run, where this library is installed
    <!-- dry-run -->    `persia train` with --dry-run, after the blocks of the mark run; other commands are parsed
    <!-- parse -->      commands are parsed: they name what only the reader has
    <!-- checkout -->   the files of the checkout that it names are there
    <!-- file NAME -->  (of any language) written to this file before the page's commands run
    <!-- fails -->      each `$ command` of a `console` ends with the error below it: see test_troubleshooting.py

Pages of the guide also have the files `shop.yaml` and `shop.jsonl`, which `persia recipe cp shop` copies.
"""

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from typer.main import get_command

from persia_cli.main import app, main
from persia_cli.version import __version__
from scripts.readme import MAX_LETTERS_OF_CODE, ROOT, Block, blocks

PAGES = [
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "reference" not in page.parts),  # those are generated
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "CHANGELOG")),
]
GUIDE = ROOT / "docs" / "guide"
EXAMPLES = sorted((ROOT / "recipes" / "shop").glob("shop.*"))
LONG = {"checkpoint-format.md"}
"""Pages whose commands run for half a minute; they run where slow tests do."""
INTERNALS = {"architecture.md", "protocol.md", "kernels.md", "checkpoint-format.md", "serving-format.md"}
MAX_WORDS_OF_INTERNALS = 7000
"""Of these pages together, without code."""
MAX_WORDS_OF_SENTENCE = 25
USER_PAGES = [page for page in PAGES if page.parent == GUIDE or page.name in ("index.md", "README.md")]
MARKS = {"run", "run slow", "dry-run", "parse", "checkout"}
TOP = ("persia_cli", "tests", "conf", "recipes", "scripts", "docs", ".ci")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def of_marks(page: Path, *marks: str) -> list[Block]:
    return [block for block in blocks(page.read_text()) if block.mark.partition(" with ")[0] in marks]


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a block as lists of arguments, without comments."""
    for line in block.code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def write_files(page: Path, folder: Path) -> None:
    for block in blocks(page.read_text()):
        if block.mark.startswith("file "):
            target = folder / block.mark.removeprefix("file ")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.code + "\n")
    if page.parent == GUIDE:
        for example in EXAMPLES:
            copy(example, folder)


def parse(words: list[str]) -> None:
    """Parse arguments as the command line does, but do nothing; raises a usage error for unknown ones."""
    assert words[0] == "persia", f"only commands of persia are parsed, not {shlex.join(words)}"
    group: Any = get_command(app)
    context = group.make_context("persia", words[1:])
    while hasattr(group, "commands"):
        name, group, rest = group.resolve_command(context, context._protected_args + context.args)
        context = group.make_context(name, rest, parent=context)


def run(page: Path, folder: Path, *marks: str) -> None:
    """Run the blocks of a page in a folder, one after another, as a reader does; skips for a library in the end."""
    write_files(page, folder)
    absent = set()
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PERSIA_CACHE_DIR": str(folder / ".cache"),
    }
    for block in of_marks(page, *marks):
        library = block.mark.partition(" with ")[2]
        if library and find_spec(library) is None:
            absent.add(library)
            continue
        interpreter = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
        limit_s = 400 if block.mark.startswith("run slow") else 150
        ended = subprocess.run(
            [*interpreter, block.code], cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s
        )
        assert ended.returncode == 0, f"{block.code}\n{ended.stdout}\n{ended.stderr}"
    if absent:
        pytest.skip(f"all other blocks ran, but these libraries are not installed: {', '.join(sorted(absent))}")


@every_page
def test_every_command_has_a_mark_for_its_check(page: Path) -> None:
    for block in blocks(page.read_text()):
        if block.language in ("sh", "bash", "shell", "python"):
            assert block.mark.partition(" with ")[0] in MARKS or block.mark.startswith("file "), block.code
        else:
            assert block.mark not in MARKS, block.code
            assert not re.search(r"^persia ", block.code, re.M), f"a command in a block that is not `sh`: {block.code}"


@pytest.mark.processes
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in LONG else [])
        for page in PAGES
        if of_marks(page, "run")
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_commands_run(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path, "run")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [page for page in PAGES if of_marks(page, "run slow")], ids=lambda page: page.stem)
def test_slow_commands_run(page: Path, tmp_path: Path) -> None:
    run(page, tmp_path, "run", "run slow")


@every_page
def test_commands_are_what_the_command_line_knows(page: Path) -> None:
    for block in of_marks(page, "dry-run", "parse"):
        for words in commands(block):
            parse(words)


@pytest.mark.processes
@pytest.mark.parametrize("page", [page for page in PAGES if of_marks(page, "dry-run")], ids=lambda page: page.stem)
def test_dry_runs_succeed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(page, tmp_path, "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / ".cache"))
    for words in (words for block in of_marks(page, "dry-run") for words in commands(block)):
        if words[:2] == ["persia", "train"]:
            monkeypatch.setattr(sys, "argv", [*words, "--dry-run"])
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code, capsys.readouterr().err


def files_of_the_checkout(page: Path) -> Iterator[str]:
    """Yield the files and patterns of files that a page names and the checkout lacks."""
    named = {
        path for path in re.findall(r"`([\w./*-]+/[\w./*-]*)(?:::\w+)?`", page.read_text()) if path.startswith(TOP)
    }
    for block in of_marks(page, "checkout"):
        named |= {word for words in commands(block) for word in words if word.split("/")[0] in TOP}
    for path in sorted(named):
        anything = re.sub("[A-Z]{4,}", "*", path)  # NAME and KIND stand for any
        if not list(ROOT.glob(path)) + list(ROOT.glob(anything)):
            yield path


@cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def names_of_the_code(page: Path) -> Iterator[str]:
    """Yield the modules, functions, classes and methods that a page names and the program lacks."""
    for name in sorted(set(re.findall(r"`(persia_cli(?:\.\w+)+)`", page.read_text()))):
        module, _, attribute = name.rpartition(".")
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError:  # a method: the class is before its name
            outer, _, inner = module.rpartition(".")
            found = getattr(importlib.import_module(outer), inner, None)
        file = ROOT / name.replace(".", "/")
        if not (hasattr(found, attribute) or file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()):
            yield name


def constants(page: Path) -> Iterator[str]:
    """Yield the constants, such as `wire.messages.PROTOCOL = 9`, that have another value."""
    for module, name, value in re.findall(r"`((?:[a-z_]+\.)+)([A-Z_]+) = ([^`]+)`", page.read_text()):
        found = getattr(importlib.import_module(f"persia_cli.{module.rstrip('.')}"), name)
        if found != ast.literal_eval(value):
            yield f"{name} = {found}"


@every_page
def test_what_a_page_names_is_there(page: Path) -> None:
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    missing = [f"{path}::{name}" for path, name in tests if name not in functions_of(path)]
    assert [*missing, *files_of_the_checkout(page), *names_of_the_code(page), *constants(page)] == []


def without_code(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "\n", text, flags=re.M | re.S)


def prose(text: str) -> str:
    """Return a page without its code, tables, headings and comments; a span of code counts as one word."""
    text = without_code(text)
    text = re.sub(r"^ *(?:[|#]|!!!|===).*$|<!--.*?-->", "\n", text, flags=re.M)
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]+`", "CODE", text)


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page: an item of a list is at least one, and a colon before a list ends one."""
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", prose(text)):
        yield from re.split(r"(?<=[.!?])[)*_\"]*\s+(?=[\W_]*[A-Z0-9])", " ".join(paragraph.split()))


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.stem)
def test_sentences_are_short(page: Path) -> None:
    assert [each for each in sentences(page.read_text()) if len(each.split()) > MAX_WORDS_OF_SENTENCE] == []


def long_lines(text: str) -> Iterator[str]:
    """Yield the lines of code that are cut; lines of JSON are data, and those of Mermaid are drawn."""
    for block in blocks(text):
        if block.language not in ("json", "mermaid"):
            yield from (line for line in block.code.splitlines() if len(line) > MAX_LETTERS_OF_CODE)


@every_page
def test_lines_of_code_are_not_cut(page: Path) -> None:
    assert list(long_lines(page.read_text())) == []


def test_pages_about_internals_stay_short() -> None:
    pages = [without_code(page.read_text()) for page in PAGES if page.name in INTERNALS]
    assert len(pages) == len(INTERNALS)
    assert len([word for page in pages for word in page.split() if re.search(r"\w", word)]) <= MAX_WORDS_OF_INTERNALS


def test_the_changelog_begins_with_this_version() -> None:
    newest, *_ = re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest == __version__
