"""The reference pages of networks, one each: paper, formulas, settings and a command, from their modules."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial

from persia_cli.config.expected import kinds, nodes
from persia_cli.config.schema import Node, Run
from scripts.readme import ROOT, narrowed
from scripts.reference_config import COLUMNS, rows

NETWORKS: dict[str, type[Node]] = {kinds(node)[0]: node for node in nodes(Run.model_fields["model"].annotation)}
"""Kind of network -> the class of its settings."""
_SEQUENCE = (
    "'model.attend={item: [last_items]}'",
    '"dataset.sparse=[user, item, \\\n    {name: last_items, table: item, pooling: none, max_length: 50}]"',
)
OVERRIDES: dict[str, tuple[str, ...]] = {
    "bst": _SEQUENCE,
    "custom": ("model.file=net.py", "model.name=Net"),
    "dien": _SEQUENCE,
    "din": _SEQUENCE,
    "esmm": ("'dataset.labels=[clicked, bought]'",),
    **dict.fromkeys(
        ("hstu", "ligr", "sasrec"), (_SEQUENCE[0], _SEQUENCE[1].replace("user, item", "item"), "dataset.dense=[]")
    ),
    "two_tower": ("'model.user=[user, last_items]'", "'model.item=[item]'"),
}
"""Further arguments of the commands of networks that need some, each a line."""


def pages() -> dict[str, Callable[[], str]]:
    """Return a function that makes the page of each network, by the page's path."""
    return {f"reference/networks/{kind}.md": partial(page, kind) for kind in sorted(NETWORKS)}


def page(kind: str) -> str:
    """Return the page of one network as Markdown."""
    return "\n".join(_lines(kind)) + "\n"


def command(kind: str) -> str:
    """Return the command that trains a network on the data of the guide."""
    return " \\\n    ".join((f"persia train conf=./shop.yaml model={kind}", *OVERRIDES.get(kind, ())))


def _lines(kind: str) -> Iterator[str]:
    module = ast.parse((ROOT / "persia_cli" / "model" / f"{kind}.py").read_text())
    yield f"# {kind}\n\n{_with_links(_plain(ast.get_docstring(module) or ''))}\n"
    yield "[Networks](../../guide/models.md#networks) compares it with the others.\n"
    parts = [part for part in module.body if isinstance(part, ast.ClassDef) and not part.name.startswith("_")]
    if parts:
        yield "## What it computes\n"
        yield from (f"**{part.name}**: {_plain(ast.get_docstring(part) or '')}\n" for part in parts)
    yield "## Train it\n\nWith the files of [your own data](../../guide/own-data.md):\n"
    yield f"```sh\n{command(kind)}\n```\n"
    yield f"`model={kind}` has these values, which further arguments change:\n"
    yield f"```yaml\n{narrowed((ROOT / 'conf' / 'model' / f'{kind}.yaml').read_text().strip())}\n```\n"
    yield f"## Settings\n\n{COLUMNS}"
    yield from rows("model", NETWORKS[kind], {})


def _plain(text: str) -> str:
    """Return text whose formulas Markdown does not take for emphasis; spans of code stay."""
    return re.sub(r"(`[^`]*`)|([*_])", lambda found: found[1] or f"\\{found[2]}", text)


def _with_links(text: str) -> str:
    """Return text whose names of papers are links."""
    text = re.sub(r"arXiv (\d+\.\d+)", r"[arXiv \1](https://arxiv.org/abs/\1)", text)
    return re.sub(r"doi (10\.\d+/[\w.]*\w)", r"[doi \1](https://doi.org/\1)", text)
