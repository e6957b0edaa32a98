"""The data in a page that is one file, after a check that the page needs nothing else."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any


def data_of(path: Path) -> dict[str, Any]:
    """Return the data of a page, whose rules permit its own style and scripts and nothing else."""
    html = path.read_text(encoding="utf-8")
    data, *scripts = re.findall("<script.*?>(.*?)</script>", html, re.DOTALL)
    styles = re.findall("<style>(.*?)</style>", html, re.DOTALL)
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts + styles
    ]
    assert f"default-src 'none'; script-src {hashes[0]} {hashes[1]}; style-src {hashes[2]}; img-src data:; " in html
    assert re.findall('(?:src|href)="(.*?)"', html.replace(data, "")) == ["data:,"]
    found: dict[str, Any] = json.loads(data)
    return found
