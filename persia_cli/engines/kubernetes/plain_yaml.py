"""Manifests as YAML for people: equal values written again, long texts unchanged, and no text that reads as another.

Kubectl reads by rules of YAML that are not PyYAML's: to it `1e3`, `0o17` and `12e4567` are numbers, and `y` is true.
"""

import re
from collections.abc import Sequence

import yaml

from persia_cli.engines.kubernetes.pod import Manifest

NO_PLAIN_TEXT = re.compile(r"[-+.]*[0-9._]|[yYnN]$")
"""Beginnings of texts that some reader may take for a number, a time or a truth value, besides those PyYAML knows."""
OTHER_BREAKS = re.compile("[\x85\u2028\u2029]")
"""Characters that end a line to some readers, and to others do not."""


def plain_yaml(manifests: Sequence[Manifest]) -> str:
    """Return manifests as the documents of a file for kubectl."""
    return yaml.dump_all(manifests, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)


class _Plain(yaml.SafeDumper):
    """Writes equal values again instead of referring to the first."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))


def _style(text: str) -> str | None:
    if OTHER_BREAKS.search(text):
        return '"'
    if "\n" in text:
        return "|"
    return '"' if NO_PLAIN_TEXT.match(text) else None


_Plain.add_representer(str, _text)
