"""The location of the folders `conf/` and `recipes/`: in the wheel, or at the top of the checkout."""

from pathlib import Path

from persia_cli.errors import PersiaError

PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """Return the folder `conf` or `recipes`: the wheel's copy if there is one, else the checkout's."""
    for root in (PACKAGE / "_shipped", PACKAGE.parent):
        if (root / name).is_dir():
            return root / name
    raise PersiaError(f"the folder {name}/ is missing from this installation; install persia again")
