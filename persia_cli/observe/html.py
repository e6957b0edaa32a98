"""Elements of a self-contained HTML page: no scripts, no fonts, nothing loaded from elsewhere."""

from collections.abc import Mapping, Sequence
from html import escape

STYLE = """
:root { --ink: #262626; --soft: #6a6a6a; --line: #e2e2e2; --back: #f6f7f8; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 26px; margin: 0 12px 0 0; display: inline-block; }
h2 { font-size: 17px; margin: 34px 0 10px; }
h3 { font-size: 14px; margin: 0 0 4px; font-weight: 600; }
p.soft, .soft { color: var(--soft); margin: 4px 0; }
.state { padding: 2px 11px; border-radius: 11px; color: white; font-size: 13px; vertical-align: 5px; }
.done { background: #2a7d5f; } .running { background: #1f6f8b; }
.failed, .dead { background: #b3261e; } .stopped, .silent { background: #9a6b16; }
.error { border-left: 4px solid #b3261e; background: #fdecea; padding: 8px 14px; white-space: pre-wrap; }
.tiles, .panels { display: grid; gap: 14px; }
.tiles { grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); margin-top: 18px; }
.panels { grid-template-columns: repeat(auto-fit, minmax(min(520px, 100%), 1fr)); }
.tile, .panel { background: white; border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px; }
.tile .soft { font-size: 13px; }
.tile b { display: block; font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.panel svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; background: white; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 14px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); } tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: white; border: 1px solid var(--line); border-radius: 8px; padding: 14px; }
"""
"""The style sheet of pages."""


def document(title: str, body: str) -> str:
    """Return a complete page with this body."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    style = f"<style>{STYLE}</style>"
    return f"""<!doctype html>
<html lang="en">
<head>{head}{style}</head>
<body><main>
{body}
</main></body>
</html>
"""


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts; the first row is its head, and the first column names the rows."""
    head, *body = rows
    return f'<div class="scroll"><table>{_row("th", head)}{"".join(_row("td", row) for row in body)}</table></div>'


def pairs(words: Mapping[str, str]) -> str:
    """Return a list of names with their descriptions."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in words.items()) + "</dl>"


def tiles(figures: Mapping[str, str]) -> str:
    """Return figures in large type, each with its name above."""
    tile = '<div class="tile"><span class="soft">{}</span><b>{}</b></div>'
    return f'<div class="tiles">{"".join(tile.format(escape(k), escape(v)) for k, v in figures.items())}</div>'


def _row(cell: str, texts: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{escape(text)}</{cell}>" for text in texts) + "</tr>"
