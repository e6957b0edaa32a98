"""Shells complete what the command line takes: commands, options, configurations, groups and keys."""

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from persia_cli.__main__ import load_app
from persia_cli.commands import completion
from persia_cli.config.compose import compose_run

PROGRAMS = Path(sys.executable).parent
KEYS = {
    "bash": 'bind -x \'"\\C-t": printf "%s" "$READLINE_LINE" > line.tmp && mv line.tmp line\'',
    "zsh": "show() { print -rn -- $BUFFER > line.tmp && mv line.tmp line }; zle -N show; bindkey '^T' show",
    "fish": "bind \\ct 'commandline | string trim -c \\n > line.tmp; mv line.tmp line'",
}
"""Commands after which Ctrl-T writes the line to a file."""
PYTHON_TIMES = 8.0
"""Limit for a completion, as a multiple of the time of an empty program."""


class Shell:
    """An interactive shell in its own folder, in which persia has installed its completion."""

    def __init__(self, name: str, home: Path) -> None:
        self._home, self._line = home, home / "line"
        environment = {
            "HOME": str(home),
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "TERM": "xterm",
            "LANG": "C.UTF-8",
        }
        subprocess.run([name, "-c", "persia --install-completion; true"], env=environment, cwd=home, check=True)
        if name == "zsh":  # compinit would ask about the folders of a container's user
            (home / ".zshrc").write_text((home / ".zshrc").read_text().replace("compinit\n", "compinit -u\n"))
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(home)
            os.execvpe(name, [name, "-i"], environment)
        self._type(f"{KEYS[name]}\r")
        if name == "zsh":
            self.completed("persia trac", wait_s=3)  # the first TAB of a session only loads typer's script

    def completed(self, text: str, wait_s: float = 30) -> str:
        """Return what a line becomes by a TAB at its end; the line itself if that does not happen."""
        self._type(f"\x15{text}\t")
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            self._type("\x14")
            line = self._line.read_text().rstrip("\n") if self._line.exists() else ""
            if line.startswith(text) and line != text:
                return line
        return text

    def close(self) -> None:
        os.close(self._terminal)
        os.kill(self._pid, 9)
        os.waitpid(self._pid, 0)

    def _type(self, text: str) -> None:
        os.write(self._terminal, text.encode())
        while select.select([self._terminal], [], [], 0.1)[0]:
            os.read(self._terminal, 1 << 16)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["bash", *(pytest.param(each, marks=pytest.mark.slow) for each in ("zsh", "fish"))])
def test_a_shell_completes_lines(name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name} here")
    (tmp_path / "mine.yaml").write_text("defaults: [base, _self_]\n")
    shell = Shell(name, tmp_path)
    try:
        assert shell.completed("persia train train.bat") == "persia train train.batch_size="
        assert shell.completed("persia train con") == "persia train conf="
        assert shell.completed("persia train --dry-run conf=criteo_1") == "persia train --dry-run conf=criteo_1tb "
        assert shell.completed("persia train train.graphs=au") == "persia train train.graphs=auto "
        assert shell.completed("persia train conf=./mi").rstrip() == "persia train conf=./mine.yaml"
        assert shell.completed("persia config explain train.bat") == "persia config explain train.batch_size "
        assert shell.completed("persia che") == "persia checkpoint "
        assert shell.completed("persia bench through") == "persia bench throughput "
        assert shell.completed("persia train --dry") == "persia train --dry-run "
    finally:
        shell.close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "completion.json"


def read_table() -> completion.Table:
    return completion.read_table(load_app)


def candidates(words: list[str], current: str) -> list[str]:
    return completion.candidates(read_table(), words, current)


def test_the_table_is_read_again_after_a_change_of_the_code(cache: Path) -> None:
    first = read_table()
    assert "train.batch_size" in first["keys"]
    cache.write_text(json.dumps({"commands": {}, "keys": {}, "source": first["source"]}))
    assert read_table()["keys"] == {}
    for other in (json.dumps({"commands": {}, "keys": {}, "source": ["older", 0]}), "{"):
        cache.write_text(other)
        assert read_table() == first


def test_a_shell_completes_without_a_place_for_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PERSIA_CACHE_DIR", str(tmp_path / "file"))
    assert candidates(["persia", "train"], "train.batch_s") == ["train.batch_size="]


def commands(path: str, command: Any) -> Any:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(f"{path} {name}", below)


def test_keys_complete_where_a_command_takes_them() -> None:
    for path, command in commands("persia", get_command(load_app())):
        names = [each.name for each in command.params if each.param_type_name == "argument"]
        if not command.hidden:
            line = [*path.split(), *["x"] * (names.index("overrides") if "overrides" in names else len(names))]
            assert candidates(line, "train.bat") == (["train.batch_size="] if "overrides" in names else [])
    assert candidates(["persia", "train", "--run-dir"], "train.bat") == []
    assert candidates(["persia", "resume"], "train.bat") == []


def test_a_line_is_completed_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups first, then their keys; every value that is offered is accepted, also of a user's own folder."""
    train = ["persia", "train"]
    assert candidates(train, "mod") == ["mode=", "model=", "model.", "mode."]
    assert {"train.batch_size=", "train.graphs="} < set(candidates(train, "trai"))
    for value in (*candidates(train, "train.graphs="), *candidates(train, "mode="), *candidates(train, "train.steps=")):
        compose_run(["conf=synthetic", value, "train.device=cpu"])
    (tmp_path / "own_shop.yaml").touch()
    monkeypatch.setenv("PERSIA_CONF_DIR", str(tmp_path))
    assert candidates(train, "conf=own") == ["conf=own_shop"]


def test_a_completion_takes_little_more_than_python() -> None:
    """Measured in CPU time by turns, so that it holds on a busy machine as well."""
    line = {"_PERSIA_COMPLETE": "complete_bash", "COMP_WORDS": "persia\ntrain\ntrain.bat", "COMP_CWORD": "2"}

    def seconds(*words: str) -> float:
        before = os.times()
        subprocess.run([sys.executable, *words], env=os.environ | line, check=True, capture_output=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    seconds("-m", "persia_cli")  # writes the table
    turns = [(seconds("-m", "persia_cli"), seconds("-c", "pass")) for _ in range(5)]
    ours, theirs = map(min, zip(*turns, strict=True))
    assert ours < PYTHON_TIMES * max(theirs, 0.01)
