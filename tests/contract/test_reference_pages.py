"""The generated pages of the reference have every key, command and message."""

import re
import shlex
from pathlib import Path

import msgspec
import pytest
import yaml
from jsonschema import Draft202012Validator

import persia_cli as persia
from persia_cli.config.compose import compose_run
from persia_cli.config.examples import EXAMPLES
from persia_cli.config.json_schema import file_schema
from persia_cli.config.schema import Run
from persia_cli.wire.frames import BY_KIND
from scripts import reference_commands, reference_config, reference_messages, reference_networks
from scripts.readme import ROOT
from scripts.reference_pages import PAGES
from tests.contract.test_cli_help import FROZEN
from tests.contract.test_docs import GUIDE, long_lines, write_files

CONF = ROOT / "conf"


def cells(page: str) -> list[list[str]]:
    """Return the cells of all rows of a page's tables."""
    return [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in page.splitlines() if line.startswith("| ")]


MEANING = re.compile(
    r"(?P<meaning>.+)<br>\*(?P<type>.+?)\*(; required|; default (?P<default>`.*?`))?(; for example (?P<example>`.+`))?"
)


@pytest.fixture(scope="module")
def config() -> dict[str, dict[str, str | None]]:
    """The facts of each configuration key."""
    rows = [row for row in cells(reference_config.page()) if row[0].startswith("`")]
    found = {key.strip("`"): MEANING.fullmatch(cell) for key, cell in rows}
    assert [key for key, match in found.items() if match is None] == []
    return {key: match.groupdict() for key, match in found.items() if match is not None}


def test_every_key_of_a_shipped_option_is_there(config: dict[str, dict[str, str | None]]) -> None:
    groups = [folder for folder in CONF.iterdir() if folder.name in Run.model_fields]
    named = {
        f"{folder.name}.{key}"
        for folder in groups
        for file in folder.glob("*.yaml")
        for key in yaml.safe_load(file.read_text()) or ()
        if key != "defaults"
    }
    assert len(named) > 50
    assert sorted(named - set(config)) == []


def test_every_key_has_a_type_an_example_and_a_meaning(config: dict[str, dict[str, str | None]]) -> None:
    groups = ("keys", "a list of keys", "a list of groups", "names with values")
    without = [key for key, row in config.items() if not (row["example"] or row["default"] or key.endswith(".kind"))]
    assert [key for key in without if not str(config[key]["type"]).startswith(groups)] == []


def test_examples_are_valid_configurations(config: dict[str, dict[str, str | None]]) -> None:
    validator = Draft202012Validator(file_schema())
    for path, value in EXAMPLES.items():
        assert path in config
        for part in reversed(path.replace("NAME", "nn_worker").split(".")):
            key, is_list = part.removesuffix("[]"), part.endswith("[]")
            value = {key: [value] if is_list else value}
        assert [error.message for error in validator.iter_errors(value)] == []


def test_keys_have_bounds_defaults_and_paths(config: dict[str, dict[str, str | None]]) -> None:
    assert config["train.threads"]["type"] == "a whole number above 0 and at most 1024"
    assert config["train.threads"]["default"] == "`1`"
    memory = config["embedding.memory"]
    assert [memory[name] for name in ("type", "default", "example")] == [
        "a size such as 512MiB or 2GiB", "`1GiB`", "`8GiB`",
    ]  # fmt: skip
    assert config["train.batch_size"]["default"] == "`auto`"
    assert config["mode.staleness"]["default"] == "`3`"
    assert {"embedding.tables.NAME.dim", "dataset.sparse[].pooling"} <= set(config)


def test_the_page_of_python_has_every_name_and_each_has_a_docstring() -> None:
    page = (ROOT / "docs" / "python-api.md").read_text()
    assert sorted(re.findall(r"^::: persia_cli\.(\w+)$", page, re.M)) == sorted(persia.__all__)
    members = {f"Run.{name}": member for name, member in vars(persia.Run).items() if not name.startswith("_")}
    objects = {name: getattr(persia, name) for name in persia.__all__} | members
    assert [name for name, member in objects.items() if not member.__doc__] == []


HIDDEN = {"drive", "on-host"}
"""Commands that other commands of Persia run."""


def test_every_command_and_option_is_there() -> None:
    sections = re.split(r"^##+ persia ", reference_commands.page(), flags=re.M)
    by_name = {section.partition("\n")[0]: section for section in sections[1:]}
    assert set(by_name) == {name for name in FROZEN if name and name not in HIDDEN}
    del by_name["launch-role"]  # has hidden options
    for name, section in by_name.items():
        options = {word for word in FROZEN[name] if word.startswith("--")} - {
            "--help",
            "--parent",
            "--progress",
            "--follow",
        }
        assert [option for option in sorted(options) if option not in section] == []


@pytest.mark.parametrize("name", PAGES)
def test_lines_of_generated_code_are_not_cut(name: str) -> None:
    assert list(long_lines(PAGES[name]())) == []


def test_every_message_and_field_is_there() -> None:
    rows = cells(reference_messages.page())
    text = {row[0]: " ".join(row) for row in rows}
    for kind in BY_KIND.values():
        assert any(row[1] == f"`{kind.__name__}`" and row[3] for row in rows)
        fields = [field.name for field in msgspec.structs.fields(kind)]
        assert [name for name in fields if not re.search(rf"`{name}\b", text[f"`{kind.__name__}`"])] == []


def test_the_comparison_counts_the_networks() -> None:
    page = (GUIDE / "is-it-for-me.md").read_text()
    shipped = len(reference_networks.NETWORKS) - 1  # custom is a network of the user
    assert f"Persia has {shipped} networks" in page
    assert f"[{shipped}](models.md#networks)" in page


@pytest.mark.parametrize("kind", reference_networks.NETWORKS)
def test_the_page_of_a_network_has_its_settings_and_a_valid_command(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = reference_networks.page(kind)
    settings = {row[0].strip("`") for row in cells(page)}
    assert {f"model.{name}" for name in reference_networks.NETWORKS[kind].model_fields} <= settings
    monkeypatch.chdir(tmp_path)
    write_files(GUIDE / "own-data.md", tmp_path)
    _, _, *overrides = shlex.split(reference_networks.command(kind).replace("\\\n", " "))
    assert compose_run(overrides).model.kind == kind
