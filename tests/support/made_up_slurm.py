"""Stand-ins for Slurm's programs, each a few lines of shell from a test."""

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
    """Put these programs first in the path, without others of Slurm."""
    folder.mkdir(exist_ok=True)
    for name, lines in {"scontrol": HOSTNAMES, "sinfo": "", **programs}.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{lines}\n")
        path.chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
