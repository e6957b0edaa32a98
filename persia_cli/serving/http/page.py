"""The page at `/`, which sends requests from a browser: one file, which loads nothing from other servers."""

import base64
import hashlib
import re
from pathlib import Path

from persia_cli.serving.http.answers import HttpAnswer

PAGE = Path(__file__).with_name("page.html")


def page() -> HttpAnswer:
    """Return the page. A browser runs its one script, and connects to this server only."""
    text = PAGE.read_text(encoding="utf-8")
    rules = [
        "default-src 'none'",
        f"script-src {_digest(text, 'script')}",
        f"style-src {_digest(text, 'style')}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
    headers = {
        "content-security-policy": "; ".join(rules),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }
    return HttpAnswer(200, text.encode(), "text/html; charset=utf-8", headers)


def _digest(text: str, tag: str) -> str:
    [content] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
