"""Programs that stand for Slurm's, each a few lines of shell that a test gives."""

import os
import stat
from pathlib import Path

import pytest

HOSTNAMES = """\
case "$1 $2" in
"show hostnames") echo "$3" | tr , '\\n' ;;
"show node") echo "NodeName=$3 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=$3" ;;
*) echo "$@" >> "$0.said" ;;
esac
"""
HERE = """\
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
"""An srun that starts a replica on this machine."""


def put(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """Let these programs be found before any other, and no other of Slurm's."""
    folder.mkdir(exist_ok=True)
    for name, lines in {"scontrol": HOSTNAMES, "sinfo": "", **programs}.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
