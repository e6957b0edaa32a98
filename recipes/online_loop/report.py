"""How well do the two servers score? AUC over time, as a table and a picture.

    python report.py DIR        # prints the table, and writes DIR/auc.svg

Only items that were shown by chance count: those that a model has chosen would not compare it fairly with another.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
from numpy.typing import NDArray

SLICE_S = 15
WIDTH, HEIGHT, LEFT, BOTTOM = 720, 300, 50, 40
LINES = {"following": "#1f77b4", "frozen": "#d62728"}

SCORED = """
select time, click, samples.click_probability as following, asked.click_probability as frozen
from read_parquet($samples, union_by_name = true) as samples
join read_parquet($frozen) as asked using (request_id, item)
where tried order by time
"""
EVENTS = """
with events as (from read_parquet($events)), samples as (from read_parquet($samples, union_by_name = true)),
    clicks as (select distinct request_id, item from events where event = 'click'),
    shown as (select distinct request_id, item from events where event <> 'click')
select count(*), count(*) filter (click = 0),
    (select count(*) - count(distinct (request_id, item, event)) from events),
    (select count(*) from shown join read_parquet($asked) using (request_id, item)
     anti join samples using (request_id, item) where epoch(request_time) < (select max(time) from samples))
from clicks join samples using (request_id, item)
"""


class Slice(NamedTuple):
    """The AUC of both servers in some seconds."""

    begin: float
    """Seconds since the first sample."""
    samples: int
    following: float
    frozen: float


def auc(scores: NDArray[Any], clicks: NDArray[Any]) -> float:
    """Return the probability that a click has a higher score than a sample without one."""
    difference = scores[clicks == 1][:, None] - scores[clicks == 0]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def slices(folder: Path, seconds: float = SLICE_S) -> list[Slice]:
    """Return the AUC in each whole slice of time; the last one is the AUC of the second half of the time."""
    files = {"samples": f"{folder}/samples/*.parquet", "frozen": f"{folder}/asked-frozen/*.parquet"}
    scored: dict[str, Any] = duckdb.execute(SCORED, files).fetchnumpy()
    time = scored["time"] - scored["time"][0]
    begins = np.arange(0, time[-1] - seconds + 1, seconds).tolist()
    found = []
    for begin, end in [*((each, each + seconds) for each in begins), (time[-1] / 2, np.inf)]:
        chosen = (time >= begin) & (time < end)
        both = (auc(scored[name][chosen], scored["click"][chosen]) for name in LINES)
        found.append(Slice(begin, int(chosen.sum()), *both))
    return found


def picture(found: list[Slice]) -> str:
    """Return a picture (SVG) of the AUC over time."""
    least = int(10 * min(min(each.following, each.frozen) for each in found)) / 10
    seconds, right, low = found[-1].begin + SLICE_S, WIDTH - 90, HEIGHT - BOTTOM

    def x(time: float) -> int:
        return round(LEFT + time / seconds * (right - LEFT))

    def y(value: float) -> int:
        return round(low * (1 - (value - least) / (1 - least)))

    parts = [f'<text x="{LEFT}" y="{HEIGHT - 4}">seconds since the shop opened; AUC of items shown by chance</text>']
    for value in np.arange(least, 1, 0.1):
        parts.append(f'<path d="M{LEFT} {y(value)}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value:.1f}</text>')
    parts += [
        f'<text x="{x(each.begin)}" y="{low + 18}" text-anchor="middle">{each.begin:.0f}</text>' for each in found[::2]
    ]
    for name, colour in LINES.items():
        points = " ".join(f"{x(each.begin + SLICE_S / 2)},{y(getattr(each, name))}" for each in found)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right - 16}" y="{y(getattr(found[-1], name)) + 4}" fill="{colour}">{name}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12"><rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>{"".join(parts)}</svg>\n'
    )


def main(folder: Path) -> None:
    """Print the table, and write the picture."""
    *found, half = slices(folder)
    print("seconds   samples  following  frozen")
    for each in found:
        print(f"{each.begin:7.0f} {each.samples:9,} {each.following:10.4f} {each.frozen:7.4f}")
    print(f"2nd half{half.samples:9,} {half.following:10.4f} {half.frozen:7.4f}")
    (folder / "auc.svg").write_text(picture(found))
    files = {name: f"{folder}/{name}/*.parquet" for name in ("samples", "events", "asked")}
    [[clicks, late, twice, lost]] = duckdb.execute(EVENTS, files).fetchall()
    print(f"{clicks:,} clicks, {late:,} of them too late; {twice:,} events came twice; {lost:,} items came too late")
    print(folder / "auc.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
