"""The recordings of replicas become one file, on the clock of the coordinator."""

import json
from pathlib import Path

import msgspec

from persia_cli.observe.recordings import TracePortion, join_recordings, read_recordings, recording_of
from persia_cli.observe.trace import Span
from tests.support.traced import Seen, read_trace

HERE, THERE = "here", "there"
UPDATE = Span("loop", "update", 1, 0, 2_000, 4_000)


def portion(
    replica: str,
    *spans: Span,
    number: int = 1,
    process: str = "a",
    ahead_ns: int = 0,
    within_ns: int | None = 0,
    clock: str = HERE,
    is_last: bool = True,
    behind_ns: int = 0,
) -> TracePortion:
    return TracePortion(replica, process, number, clock, ahead_ns, within_ns, 0, is_last, list(spans), behind_ns)


def leave(folder: Path, *portions: TracePortion) -> None:
    for each in portions:
        path = recording_of(folder, each.replica)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(msgspec.json.encode(each) + b"\n")


def test_those_of_one_machine_are_joined_on_its_clock(tmp_path: Path) -> None:
    leave(
        tmp_path,
        portion("embedding-server-0", Span("loop", "look-up", 1, 0, 6_000, 7_500)),
        portion(
            "nn-worker-0", Span("", "pull", 1, 0, 5_000, 9_000), Span("training", "forward", 0, None, 5_500, 8_000)
        ),
    )
    path = tmp_path / "trace.json"
    joined = join_recordings(tmp_path, ["embedding-server-0", "data-loader-0", "nn-worker-0"], path)
    assert joined == (3, 0, ["data-loader-0"], [])
    assert read_trace(path) == [
        Seen("nn-worker-0", "", "pull", 1, 0, 0.0, 4.0, True, {"step": 1, "rank": 0}),
        Seen("nn-worker-0", "training", "forward", 0, None, 0.5, 3.0, False, {"step": 0}),
        Seen("embedding-server-0", "loop", "look-up", 1, 0, 1.0, 2.5, False, {"step": 1, "rank": 0}),
    ]
    said = json.loads(path.read_text())["otherData"]
    assert said == {"clock": "CLOCK_MONOTONIC of the coordinator", "replicas_shifted_by_at_most_us": 0}


def test_another_clock_is_corrected_by_the_best_comparison(tmp_path: Path) -> None:
    far = [Span("loop", "update", step, 0, at, at + 500) for step, at in ((1, 500), (2, 1_500))]
    leave(
        tmp_path,
        portion("nn-worker-0", far[0], ahead_ns=90_000, within_ns=80_000, is_last=False),
        portion("nn-worker-0", far[1], number=2, ahead_ns=10_000, within_ns=3_000),
        portion("embedding-server-0", UPDATE),
    )
    spans = {trace.replica: [span.begin_ns for span in trace.spans] for trace in read_recordings(tmp_path)}
    assert spans == {"embedding-server-0": [2_000], "nn-worker-0": [10_500, 11_500]}
    join_recordings(tmp_path, ["nn-worker-0", "embedding-server-0"], tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["replicas_shifted_by_at_most_us"] == 3


def test_a_later_coordinator_is_corrected_by_its_wall_clock(tmp_path: Path) -> None:
    leave(tmp_path, portion("nn-worker-0", UPDATE, behind_ns=1_000_000))
    leave(tmp_path, portion("nn-worker-0", UPDATE, process="b", clock=THERE, behind_ns=1_007_000))
    [trace] = read_recordings(tmp_path)
    assert [span.begin_ns for span in trace.spans] == [2_000, 9_000]


def test_recordings_of_killed_processes_are_reported(tmp_path: Path) -> None:
    leave(
        tmp_path,
        portion("nn-worker-0", UPDATE, is_last=False),
        portion("nn-worker-0", process="b"),
        portion("data-loader-0", UPDATE, within_ns=None),
        portion("embedding-server-0", UPDATE),
    )
    names = ["embedding-server-0", "data-loader-0", "nn-worker-0"]
    joined = join_recordings(tmp_path, names, tmp_path / "trace.json")
    assert joined == (2, 0, ["data-loader-0"], ["nn-worker-0"])


def test_an_incomplete_line_is_skipped(tmp_path: Path) -> None:
    leave(tmp_path, portion("nn-worker-0"))
    recording_of(tmp_path, "data-loader-0").write_text('{"replica": "data')
    joined = join_recordings(tmp_path, ["data-loader-0", "nn-worker-0"], tmp_path / "trace.json")
    assert joined == (0, 0, ["data-loader-0", "nn-worker-0"], [])
    assert not (tmp_path / "trace.json").exists()
