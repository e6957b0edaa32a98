"""The thread that writes a save has lower priority, also if its process already has."""

import os
import threading

import pytest

from persia_cli.roles.embedding_server.saving import NICENESS, lower_thread_priority


@pytest.mark.parametrize(("more", "expected"), [(0, NICENESS), (NICENESS + 3, NICENESS + 3)])
def test_a_writing_thread_is_as_nice_as_its_process_or_nicer(more: int, expected: int) -> None:
    found: list[int] = []

    def write() -> None:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), more))
        lower_thread_priority()
        found.append(os.getpriority(os.PRIO_PROCESS, thread))

    begun_with = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert found == [max(expected, begun_with)]
