"""A page of the dashboard as one HTML file, which needs no server, no other file and no network.

The modules of the page become one script, without their imports: names at the top of modules are unique. Texts of a
run are data, in which `<` is escaped, so they cannot end it; only scripts and styles of known content run.
"""

import base64
import hashlib
import html
import re
import time
from pathlib import Path
from typing import Any

from persia_cli.dashboard.curves import MAX_POINTS, new_curves
from persia_cli.dashboard.details import details, to_json
from persia_cli.dashboard.folder import Folder
from persia_cli.dashboard.panels import panels
from persia_cli.dashboard.rows import read_row
from persia_cli.dashboard.sweep import sweep_details
from persia_cli.observe.history import RunHistory
from persia_cli.version import __version__

STATIC = Path(__file__).with_name("static")
ENTRY = "file.js"
RULES = (
    "default-src 'none'; script-src {scripts}; style-src {style}; img-src data:; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'"
)
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{rules}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<main id="main" tabindex="-1"><noscript>This page needs JavaScript.</noscript></main>
<script type="application/json" id="data">{data}</script>
<script>{plot}</script>
<script>{code}</script>
</body>
</html>
"""


def run_file(history: RunHistory, now: float) -> str:
    """Return the page of a run; `now` is in seconds since 1970."""
    name = history.run_dir.resolve().name
    curves, _, _ = new_curves(history.run_dir, "", MAX_POINTS)
    return _file(name, {"run": details(history, now), "curves": curves, "panels": panels()}, now)


def sweep_file(path: Path, text: str, metric: str, now: float) -> str:
    """Return the page of a sweep, whose settings are compared by a metric; the text is its first line."""
    folder, name = Folder(path), path.resolve().name
    rows = [read_row(folder, run, now) for run in folder.runs(".")]
    return _file(name, {"sweep": sweep_details(folder, ".", metric) | {"text": text}, "rows": rows}, now)


def _file(title: str, data: dict[str, Any], now: float) -> str:
    title = title.encode(errors="replace").decode()  # a folder's name may not be in UTF-8
    made = f"Made by persia {__version__} at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}."
    licence = f"/*\n{_read('uPlot.LICENSE')}*/\n"
    style = _read("uPlot.min.css") + "\n" + _read("style.css")
    scripts = {"plot": licence + _read("uPlot.iife.min.js"), "code": f'"use strict";\n{{\n{_bundled(ENTRY, set())}}}\n'}
    rules = RULES.format(scripts=" ".join(map(_hash, scripts.values())), style=_hash(style))
    encoded = to_json({"title": title, "made": made, **data}).decode().replace("<", "\\u003c")
    return PAGE.format(title=html.escape(title), rules=rules, style=style, data=encoded, **scripts)


def _bundled(name: str, done: set[str]) -> str:
    """Return a module after those that it imports, each once, without imports and exports."""
    if name in done:
        return ""
    done.add(name)
    text = _read(name)
    imported = "".join(
        _bundled(module, done) for module in re.findall(r'^import .* from "\./(.*)";$', text, re.MULTILINE)
    )
    return imported + re.sub(r"^export |^import .*\n", "", text, flags=re.MULTILINE)


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the source of a content security policy that permits a script or style with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
