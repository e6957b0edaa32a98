"""Manifests as YAML for people: equal values written again, long texts as they are."""

from collections.abc import Sequence

import yaml

from persia_cli.engines.kubernetes.pod import Manifest


def plain_yaml(manifests: Sequence[Manifest]) -> str:
    """Return manifests as the documents of a file for kubectl."""
    return yaml.dump_all(manifests, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)


class _Plain(yaml.SafeDumper):
    """Writes equal values again instead of referring to the first."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)
