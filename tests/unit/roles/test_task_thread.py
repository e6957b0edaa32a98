"""The results of tasks on another thread."""

import pytest

from persia_cli.roles.task_thread import TaskThread


def test_results_after_a_failed_task_are_passed_on() -> None:
    def fail() -> None:
        raise OSError("the disk is full")

    thread, results = TaskThread("disk", lambda: None), list[int]()
    thread.run("writing", fail)
    thread.run("publishing", lambda: 7, results.append)
    thread.close()
    with pytest.raises(OSError, match="the disk is full"):
        thread.tick()
    assert results == [7]
    assert thread.is_idle
