"""Metadata of the distribution that is computed when it is built."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = r"\[([^\]]*)\]\((?!https:)[^)]*\)"


class Description(MetadataHookInterface):
    """The README without what a package index cannot show: links to files of the checkout, and pictures."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(rf"(!{LINK}|```mermaid\n.*?\n```)\n*", "", text, flags=re.S)
        metadata["readme"] = {"content-type": "text/markdown", "text": re.sub(LINK, r"\1", text)}
