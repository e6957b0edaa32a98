"""A checkpoint that finds no room: the save fails, is shown and counted, training goes on, and the next one works."""

import time
from collections.abc import Callable
from typing import Any

from persia_cli.drill.job import DrilledJob
from persia_cli.drill.result import StrikeResult
from persia_cli.drill.strikes import full_disk
from persia_cli.launch.save_request import SaveRequest

WRITERS = ("embedding-server", "nn-worker")
"""Roles that write a checkpoint's files."""
Until = Callable[[Callable[[], bool], str], None]


def fill_disk(job: DrilledJob, result: StrikeResult, until: Until) -> None:
    """Have a save fail for want of room, give room again, and have one succeed; `until` waits for something."""
    with full_disk([process for name, process in job.replicas().items() if name.startswith(WRITERS)]):
        failed = _save(job, "save_failed", result.at, until, "a checkpoint to find no room")
    result.noticed_s = round(failed["time"] - result.at, 3)
    result.text = str(failed["text"])
    result.over = time.time()
    saved = _save(job, "saved", result.over, until, "a checkpoint to be saved")
    result.recovered_s = round(saved["time"] - result.at, 3)


def _save(job: DrilledJob, outcome: str, since: float, until: Until, what: str) -> dict[str, Any]:
    """Ask the job to save until that ends in one way; return the event."""
    found: list[dict[str, Any]] = []
    request = SaveRequest(job.run_dir)

    def is_done() -> bool:
        nonlocal request
        request.poll()
        found[:] = [event for event in job.events() if event["event"] == outcome and event["time"] > since]
        if not found and request.answer is not None:  # that was another save
            request.close()
            request = SaveRequest(job.run_dir)
        return bool(found)

    try:
        until(is_done, what)
    finally:
        request.close()
    return found[0]
