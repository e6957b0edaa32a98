"""`persia train --trace`: the file shows the order that each mode promises, and that work overlaps."""

import re
from collections.abc import Callable

import pytest

from tests.support.launched import Launched
from tests.support.small import WORDS
from tests.support.traced import Seen, assert_threads_do_one_thing_at_a_time, read_trace

FIRST, LAST = 30, 130
RANKS = ["cluster=local", "cluster.nn_workers=2", "cluster.embedding_servers=2"]
WIDE = ["model.hidden=[128,128]", "train.steps=140", "cluster.retry_s=20"]
"""Enough of a network for backward to take as long as a look-up, and nothing is asked for twice."""
FETCHES = {"fetch scores", "fetch gradients"}
TRAINING = {"decode rows", "forward", "backward", "encode gradients", "dense step", "wait for batch"} | FETCHES
DONE = {
    "data-loader": {"make batch", "send", "wait for credit"},
    "embedding-worker": {"plan", "look-up", "forward rows", "forward gradients", "update"},
    "embedding-server": {"look-up", "update"},
    "nn-worker": {"pull", "ready", "push"} | TRAINING,
}


@pytest.fixture(scope="module")
def trace_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Seen]]:
    """Train with arguments, and return the contents of the trace."""

    def train(*words: str) -> list[Seen]:
        folder = tmp_path_factory.mktemp("traced")
        options = ["--trace", str(folder / "trace.json"), "--trace-steps", f"{FIRST}:{LAST}"]
        with Launched([*WORDS, *words, *WIDE, *options], folder / "run") as job:
            code, _ = job.end(within_s=90.0)
            assert code == 0, job.output
        said = rf"trace +{folder}/trace.json: steps 30 to 129, [\d,]+ spans; open it at https://ui.perfetto.dev"
        assert re.search(said, job.output)
        assert not (folder / "run" / "trace").exists()
        return read_trace(folder / "trace.json")

    return train


@pytest.fixture(scope="module")
def hybrid(trace_of: Callable[..., list[Seen]]) -> list[Seen]:
    """The trace of a job of two ranks with three steps in flight each."""
    return trace_of(*RANKS, "mode=hybrid", "mode.staleness=3")


def named(spans: list[Seen], name: str, role: str) -> list[Seen]:
    return [span for span in spans if span.name == name and span.replica.startswith(role)]


def by_batch(spans: list[Seen], name: str, role: str) -> dict[tuple[int, int], list[Seen]]:
    found: dict[tuple[int, int], list[Seen]] = {}
    for span in named(spans, name, role):
        assert span.rank is not None
        found.setdefault((span.step, span.rank), []).append(span)
    return found


@pytest.mark.slow
def test_every_role_shows_every_step_it_works_at(hybrid: list[Seen]) -> None:
    for role, names in DONE.items():
        own = [span for span in hybrid if span.replica.startswith(role)]
        assert {span.name for span in own} - {"all-reduce"} == names
        for name in names - {"wait for credit"}:
            assert {span.step for span in own if span.name == name} == set(range(FIRST, LAST)), name
    assert_threads_do_one_thing_at_a_time(hybrid)


@pytest.mark.slow
def test_a_step_passes_through_the_roles_in_order_on_one_clock(hybrid: list[Seen]) -> None:
    look_ups, updates = by_batch(hybrid, "look-up", "embedding-server"), by_batch(hybrid, "update", "embedding-server")
    for pull, push in zip(named(hybrid, "pull", "nn-worker"), named(hybrid, "push", "nn-worker"), strict=True):
        for inner in look_ups[pull.step, pull.rank or 0]:
            assert pull.begin < inner.begin < inner.end < pull.end
        for inner in updates[push.step, push.rank or 0]:
            assert push.begin < inner.begin < inner.end < push.end


@pytest.mark.slow
def test_rows_are_fetched_during_other_steps_within_the_bound(hybrid: list[Seen]) -> None:
    for rank in (0, 1):
        own = [span for span in hybrid if span.replica == f"nn-worker-{rank}"]
        backward, pulls = named(own, "backward", "nn"), named(own, "pull", "nn")
        overlapping = {b.step for b in backward for p in pulls if p.step > b.step and p.overlaps(b)}
        assert len(overlapping) > (LAST - FIRST) / 10
        assert {pull.arguments["staleness"] for pull in pulls} <= {1, 2, 3}
    updates = by_batch(hybrid, "update", "embedding-server")
    for look_up in named(hybrid, "look-up", "embedding-server"):
        for update in updates.get((look_up.step - 3, look_up.rank or 0), []):
            if update.replica == look_up.replica:
                assert update.end <= look_up.begin


@pytest.mark.slow
def test_in_sync_no_row_is_read_before_the_step_before_is_applied(trace_of: Callable[..., list[Seen]]) -> None:
    spans = trace_of(*RANKS, "mode=sync")
    updates = {}
    for span in named(spans, "update", "embedding-server"):
        updates[span.replica, span.step] = span
    look_ups = named(spans, "look-up", "embedding-server")
    assert len(look_ups) == 4 * (LAST - FIRST)
    checked = [(look_up, updates[look_up.replica, look_up.step - 1]) for look_up in look_ups if look_up.step > FIRST]
    assert all(update.end <= look_up.begin for look_up, update in checked)
    assert named(spans, "look-up held", "embedding-server")
    assert {pull.arguments["staleness"] for pull in named(spans, "pull", "nn-worker")} == {1}


@pytest.mark.slow
def test_a_job_in_one_process_is_traced_by_replica(trace_of: Callable[..., list[Seen]]) -> None:
    spans = trace_of("cluster=embedded", "mode=hybrid")
    roles = {span.replica for span in spans}
    assert roles == {"data-loader-0", "embedding-worker-0", "embedding-server-0", "nn-worker-0"}
    assert_threads_do_one_thing_at_a_time(spans)
