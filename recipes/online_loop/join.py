"""Requests, what was shown of them, and clicks become training samples, a file for some seconds of requests.

    python join.py DIR        # DIR/asked and DIR/events to DIR/samples, until it is ended

A file is named by the end of its seconds and appears whole. So the newest name is all the state that there is: a
process that was killed is started again and goes on after it.
"""

import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

BATCH_S = 2
"""Seconds of requests that become one file, at least: those that have waited become one file together."""
WINDOW_S = 5
"""Seconds after a request in which a click counts, and in which a client may repeat the request."""
ARRIVE_S = 4
"""Seconds in which requests and events are in files."""
EVENTS = pa.schema({"request_id": pa.string(), "item": pa.int64(), "event": pa.string(), "time": pa.float64()})
"""Events of the shop: `best` and `tried` show an item, `click` is a click; the time is in seconds since 1970."""

JOIN = """
with requests as (  -- a request that its client has repeated counts once, at its first time
    select * exclude request_time, epoch(request_time) as time from asked
    qualify row_number() over (partition by request_id, item order by time) = 1
), shown as (       -- events that came twice are one
    select request_id, item, bool_or(event = 'tried') as tried
    from events where event <> 'click' group by all
), clicked as (
    select request_id, item, min(time) as click_time
    from events where event = 'click' group by all
)
select requests.*, tried, coalesce(click_time <= time + $window, false)::tinyint as click
from requests join shown using (request_id, item) left join clicked using (request_id, item)
where time >= $begin and time < $end
order by time, request_id, item
"""


def join(asked: Any, events: Any, begin: float, end: float, window: float = WINDOW_S) -> Any:
    """Return the samples of the requests from `begin` on, before `end`: an Arrow table with a row for each shown item.

    The tables need what is in files since `begin - window`. A click that is later than the window does not count.
    """
    with duckdb.connect(config={"threads": 1}) as database:
        database.register("asked", asked)
        database.register("events", events)
        times = {"begin": begin, "end": end, "window": window}
        return database.sql(JOIN, params=times).to_arrow_table()


def read(folder: Path, since: float, schema: Any = None) -> Any:
    """Return the rows of the files that were written since a time, and perhaps older ones; None if there is no file."""
    files = [file for file in sorted(folder.glob("[!.]*.parquet")) if file.stat().st_mtime >= since - 1]
    if not files:
        return None if schema is None else schema.empty_table()
    return pa.concat_tables([pq.read_table(file) for file in files])


def write(table: Any, path: Path) -> None:
    """Write a file that appears whole."""
    hidden = path.with_name(f".{path.name}")
    pq.write_table(table, hidden)
    hidden.rename(path)


def main(folder: Path) -> None:
    """Join batch after batch, each as soon as its clicks are in files."""
    begin = max(int(file.stem) for file in (folder / "samples").glob("[!.]*.parquet"))
    while True:
        end = max(begin + BATCH_S, int(time.time()) - WINDOW_S - ARRIVE_S)
        time.sleep(max(0.0, end + WINDOW_S + ARRIVE_S - time.time()))
        asked, events = read(folder / "asked", begin - WINDOW_S), read(folder / "events", begin - WINDOW_S, EVENTS)
        if asked is not None:
            samples = join(asked, events, begin, end)
            if samples.num_rows:
                write(samples, folder / "samples" / f"{end}.parquet")
        begin = end


if __name__ == "__main__":
    main(Path(sys.argv[1]))
