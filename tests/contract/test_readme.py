"""Statements of the README are true of the checkout that contains it."""

import re
import runpy
from pathlib import Path

import pytest
from typer.main import get_command

from persia_cli.config.compose import compose_run
from persia_cli.config.schema import ParquetDataset
from persia_cli.main import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = ROOT / "docs" / "guide"


@pytest.mark.parametrize("name", ["train", "tests"])
def test_each_of_the_two_commands_is_one_line(name: str) -> None:
    command = runpy.run_path(str(ROOT / "scripts" / "readme.py"))["command"](name, README)
    assert command.startswith("python3 -m venv")
    assert "\n" not in command


def test_the_configuration_for_ones_own_data_is_valid(tmp_path: Path) -> None:
    [text] = re.findall(r"```yaml\n(.+?)```", README, re.DOTALL)
    (tmp_path / "shop.yaml").write_text(text)
    run = compose_run([f"conf={tmp_path / 'shop.yaml'}"])
    assert isinstance(run.dataset, ParquetDataset)
    assert [(feature.name, feature.table) for feature in run.dataset.sparse] == [
        ("user", None),
        ("item", None),
        ("last_items", "item"),
    ]
    assert run.embedding.memory == 8 * 2**30


def test_every_command_it_names_exists() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    named = re.findall(r"(?:`|^)persia ([a-z-]+)(?: ([a-z-]+)\b(?!=))?", README, re.MULTILINE)
    assert {command for command, _ in named} == {name for name, command in commands.items() if not command.hidden}
    for command, more in named:
        inner = getattr(commands[command], "commands", None)
        assert inner is None or not more or more in inner, f"persia {command} {more}"


def test_it_is_short() -> None:
    without_diagram = re.sub(r"^```mermaid\n.*?^```\n", "", README, flags=re.M | re.S)
    assert len(without_diagram.splitlines()) <= 120


def test_the_index_links_every_page_of_the_guide() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in GUIDE.glob("*.md") if f"(guide/{page.name})" not in index] == []
