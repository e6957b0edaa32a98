"""The tables of a checkpoint on the screen: statistics and small histograms."""

from typing import Any

from rich.console import Console
from rich.text import Text

from persia_cli.commands.screen import paragraph, say, size
from persia_cli.commands.tables import bars, columns, print_table
from persia_cli.observe.table_report import CheckpointReport, TableStats
from persia_cli.store.table_counters import OF_COLD

UNKNOWN = "-"


def show_tables(console: Console, report: CheckpointReport) -> None:
    """Print a row of numbers and small histograms for each table."""
    _show_counts(console, report)
    say(console, "")
    _show_histograms(console, report)


def as_object(report: CheckpointReport) -> dict[str, Any]:
    """Return a whole report for JSON."""
    tables: dict[str, Any] = {}
    for name, table in report.tables.items():
        histograms = {
            kind: {"edges": histogram.edges, "counts": histogram.counts}
            for kind, histogram in (("norms", table.stats.norms), ("ages", table.stats.ages))
        }
        tables[name] = {
            "rows": table.stats.rows,
            "bytes": table.nbytes,
            "row_bytes": table.row_bytes,
            "room_tables": len(table.sharing) or 1,
            "room_capacity": table.capacity,
            "room_fraction": table.room_fraction,
            "hit_rate": table.hit_rate,
            "look_up_hit_rate": table.look_up_hit_rate,
            "zeros": table.stats.zeros,
            "not_finite": table.stats.not_finite,
            "counters": table.counters,
            **histograms,
        }
    return {"checkpoint": str(report.checkpoint), "step": report.step, "tables": tables}


def _show_counts(console: Console, report: CheckpointReport) -> None:
    counted = ["evicted", "refused"]
    if any("cold_rows" in (table.counters or {}) for table in report.tables.values()):
        counted = ["refused", *OF_COLD]
    heads = [counter.replace("cold_rows", "on disk") for counter in counted]
    shown = columns("table", "rows", "memory", "of capacity", "ids hit", "look-ups hit", *heads)
    for name, table in report.tables.items():
        counters = table.counters or {}
        shown.add_row(
            Text(name),
            f"{table.stats.rows:,}",
            UNKNOWN if table.nbytes is None else size(table.nbytes),
            _percent(table.room_fraction),
            _percent(table.hit_rate),
            _percent(table.look_up_hit_rate),
            *(f"{counters[key]:,}" if key in counters else UNKNOWN for key in counted),
        )
    rows = sum(table.stats.rows for table in report.tables.values())
    memory = sum(table.nbytes or 0 for table in report.tables.values())
    shown.add_row("all", f"{rows:,}", size(memory) if memory else "", style="bold")
    print_table(console, shown)


def _show_histograms(console: Console, report: CheckpointReport) -> None:
    shown = columns("table", "norm", "", "", "age", "", "", "")
    for number in (2, 3, 5, 6, 7):
        shown.columns[number].justify = "left"
    for name, table in report.tables.items():
        norms, ages = table.stats.norms, table.stats.ages
        least, greatest = (f"{edge:.3g}" for edge in (norms.edges[0], norms.edges[-1])) if norms.edges else ("-", "")
        # The last edge is the first whole step beyond the bin.
        newest, oldest = f"{ages.edges[0]:,}", f"{ages.edges[-1] - 1:,}"
        shown.add_row(
            Text(name), least, bars(norms.counts), greatest, newest, bars(ages.counts), oldest, _odd(table.stats)
        )
    print_table(console, shown)
    paragraph(console, "norm: length of an embedding; age: steps since a row was last used", style="dim")
    rooms = {table.sharing: table.capacity for table in report.tables.values() if table.sharing}
    for sharing, capacity in rooms.items():
        paragraph(console, f"of capacity: {', '.join(sharing)} share a capacity of {capacity:,} rows", style="dim")


def _odd(stats: TableStats) -> Text:
    """Return as text the rows that are in no bin."""
    parts = [f"{stats.zeros:,} zero"] if stats.zeros else []
    parts += [f"{stats.not_finite:,} NOT FINITE"] if stats.not_finite else []
    return Text(", ".join(parts), "bold yellow" if stats.not_finite else "")


def _percent(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{fraction:.1%}"
