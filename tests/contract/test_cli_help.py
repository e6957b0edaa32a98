"""The command line as people know it: commands, options, help that comes fast and ends with examples."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import typer.testing

from persia_cli.main import app

FROZEN = {
    path: ["--help", *names.split()]
    for path, names in {
        "": "--debug --install-completion --log-format --show-completion --verbose --version",
        "attach": "--progress run",
        "bench": "",
        "bench capacity": "--conf-dir --json --quick --rounds --sizes --steps overrides",
        "bench costs": "--conf-dir --json --output overrides",
        "bench modes": "--conf-dir --delay-ms --hosts --json --mbit --quick --rounds --steps overrides",
        "bench throughput": "--compare --conf-dir --json --quick --rounds --source --steps overrides",
        "checkpoint": "",
        "checkpoint export": "--last-used --output --overwrite --state --table folder",
        "checkpoint gc": "--dry-run --keep --yes run",
        "checkpoint ls": "--json run",
        "checkpoint now": "run",
        "checkpoint show": "--json folder",
        "checkpoint verify": "--json folder",
        "config": "",
        "config explain": "--conf-dir --json key overrides",
        "config list": "--conf-dir prefix",
        "config model": "--conf-dir --json overrides",
        "config schema": "",
        "config show": "--conf-dir overrides",
        "dashboard": "--host --port --token-file folder",
        "data": "",
        "data land": "--columns --config --every-s --format --max-bad --once --to address",
        "data inspect": "--dim --json --memory --optimizer --write overrides path",
        "doctor": "--json folder",
        "drive": "--background --lock --run-dir --scheduler overrides",
        "eval": "--approximate --at --data --importance --json --keep-seen --retrieval --step --test overrides run",
        "export": "--format --name --output --overwrite --rows --step --verify run",
        "keys": "",
        "keys new": "file",
        "launch-role": (
            "--advertise --attached --bind --conf-dir --coordinator --cpus --incarnation --index --key-file "
            "--memory-file --parent --run-dir --supervise --token-file --trusted-network overrides role"
        ),
        "logs": "role run",
        "on-host": "",
        "plan": "--conf-dir --costs --json --machines --samples-per-s overrides",
        "predict": "--keep --logits --output --overwrite --step data run",
        "publish": "--follow --to run",
        "recipe": "",
        "recipe cp": "folder name",
        "recipe ls": "",
        "recipe prepare": "--input --max-bad-rows --min-count --output --split --workers name",
        "recipe run": "--conf-dir --input --max-bad-rows --min-count --output --split --workers name overrides",
        "recipe show": "name",
        "recommend": "--approximate --item --keep --keep-seen --output --overwrite --step --top --users overrides run",
        "report": "--output run",
        "resume": "--dry-run overrides run",
        "rollback": "folder version",
        "runs": "",
        "runs compare": "--json runs",
        "runs ls": "--json folder",
        "serve": (
            "--connections --drain --host --log --log-every --max-lag --missing --port --sample --tls --token-file "
            "--unix --workers folder"
        ),
        "stop": "--now run",
        "sweep": (
            "--baseline --conf-dir --dry-run --folder --folds --jobs --json --limit-s --metric --prune --repeat "
            "--resume --search --trials overrides"
        ),
        "table": "",
        "table stats": "--json folder",
        "top": "run",
        "trace": "output run",
        "train": "--conf-dir --dry-run --parent --render --run-dir --trace --trace-steps overrides",
    }.items()
}
"""Every command with its options and arguments; what is taken away here is taken from people's scripts."""

HEAVY = ("hydra", "msgspec", "numba", "numpy", "omegaconf", "pyarrow", "pydantic", "torch", "yaml", "zmq")
HELP_TIMES = 3.5
"""Limit for help, as a multiple of the time that it takes to import these alone."""
LIBRARIES = "import typer.main, rich.console, rich.table, rich.panel"


def commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands(below, f"{path} {name}".strip())


def names(command: Any) -> list[str]:
    context = command.make_context("persia", [], resilient_parsing=True)
    found = sorted(next((o for o in p.opts if o.startswith("--")), p.name) for p in command.get_params(context))
    return ["--help", *(name for name in found if name != "--help")]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def test_commands_and_options_are_frozen() -> None:
    assert {path: names(command) for path, command in commands(typer.main.get_command(app))} == FROZEN


@pytest.mark.parametrize("path", FROZEN)
def test_help_ends_with_examples(path: str) -> None:
    ended = typer.testing.CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "200"})
    assert ended.exit_code == 0
    lines = [line.strip() for line in ended.output.splitlines() if line.strip()]
    examples = lines[lines.index("Examples:") + 1 :]
    assert examples
    assert not any(line.endswith("...") for line in lines[1 : lines.index("Examples:")])  # cut, below the usage
    assert all(line.startswith(f"persia {path}".strip()) for line in examples)


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import json, sys; import persia_cli.main; print(json.dumps(sorted(m.partition('.')[0] for m in sys.modules)))"
    )
    loaded = set(json.loads(python("-c", code).stdout))
    assert loaded.isdisjoint(HEAVY)


def test_help_is_fast() -> None:
    """Measured in CPU time by turns with the libraries that print it, so that it holds on a busy machine as well."""

    def seconds(*words: str) -> float:
        before = os.times()
        python(*words)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    python("-m", "persia_cli", "--help")
    turns = [(seconds("-m", "persia_cli", "train", "--help"), seconds("-c", LIBRARIES)) for _ in range(5)]
    ours, theirs = map(min, zip(*turns, strict=True))
    assert ours < HELP_TIMES * theirs


def test_the_command_runs_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = typer.testing.CliRunner().invoke(app, ["train", "--dry-run"])
    assert "32,561 training and 16,281 evaluation samples" in ended.output
    assert list(tmp_path.iterdir()) == []
