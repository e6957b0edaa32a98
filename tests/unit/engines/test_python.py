"""Processes that persia starts are of this persia, whatever lies in the folder it is started in."""

import subprocess
from pathlib import Path

import persia_cli
from persia_cli.engines.processes import python_module


def test_files_of_the_working_folder_are_not_taken_for_modules(tmp_path: Path) -> None:
    (tmp_path / "typing.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "persia_cli").mkdir()
    (tmp_path / "persia_cli" / "__main__.py").write_text("print('not this one')\n")
    command = [*python_module("persia_cli"), "--version"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"persia {persia_cli.__version__}\n", "")
