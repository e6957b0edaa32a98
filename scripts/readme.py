"""Print a command of the README, so that CI runs what a reader is told to run: `python3 scripts/readme.py tests`."""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def command(name: str, text: str) -> str:
    """Return the command of the code block after the mark `<!-- NAME -->`; raises ValueError if there is none."""
    found = re.search(rf"<!-- {re.escape(name)} -->\s*```\w*\n(.+?)\n```", text, re.DOTALL)
    if found is None:
        raise ValueError(f"README.md has no command marked <!-- {name} -->")
    return found[1]


if __name__ == "__main__":
    print(command(sys.argv[1], README.read_text(encoding="utf-8")))
