"""What a start of a run has changed is taken back if it is refused, and never what a job has trained."""

from pathlib import Path

import pytest

from persia_cli.errors import DiskError, UserError
from persia_cli.launch.resumed import EARLIER
from persia_cli.launch.taken_back import taken_back_if_refused
from persia_cli.observe.journal import EVENTS, METRICS, Journal

LINES, LATER = b'{"step": 5}\n', b'{"step": 9}\n'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / METRICS).write_bytes(LINES + LATER)
    (tmp_path / EVENTS).write_text('{"event": "phase", "phase": "training"}\n')
    (tmp_path / "config.yaml").write_text("before")
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def begin(run: Path) -> None:
    """Do what a start does before its roles begin."""
    aside = run / EARLIER / "start"
    aside.mkdir(parents=True)
    (aside / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    (run / EVENTS).rename(aside / EVENTS)
    (run / METRICS).write_bytes(LINES)
    (run / "config.yaml").write_text("after")
    (run / "roles").mkdir()


def start(run: Path, error: Exception, phase: str = "", lines: bytes = b"") -> None:
    """Begin, come to a phase, record lines of metrics, and fail."""
    with taken_back_if_refused(run, len(LINES), (EVENTS, "roles", "config.yaml"), ()):
        begin(run)
        if phase:
            events = Journal(run / EVENTS)
            events.write(event="phase", phase=phase)
            events.close()
        (run / METRICS).write_bytes(LINES + lines)
        raise error


def taken_back(run: Path, phase: str, error: Exception) -> dict[str, bytes]:
    with pytest.raises(type(error)):
        start(run, error, phase)
    return content(run)


def test_a_refusal_is_taken_back(run: Path) -> None:
    before = content(run)
    assert taken_back(run, "failed", UserError("the rows are damaged")) == before
    assert not (run / EARLIER).exists()
    assert not (run / "roles").exists()


@pytest.mark.parametrize(
    ("phase", "error"), [("training", UserError("no room")), ("failed", RuntimeError("a fault of the program"))]
)
def test_what_has_begun_and_faults_stay_recorded(run: Path, phase: str, error: Exception) -> None:
    after = taken_back(run, phase, error)
    assert (after["config.yaml"], after[METRICS]) == (b"after", LINES)
    assert f"{EARLIER}/start/{EVENTS}" in after


def test_steps_that_were_trained_stay_though_their_events_are_gone(run: Path) -> None:
    new = b'{"step": 6}\n{"step": 7}\n'
    with pytest.raises(DiskError):
        start(run, DiskError("events.jsonl was removed while it was being written"), lines=new)
    assert (run / METRICS).read_bytes() == LINES + new
    assert (run / "config.yaml").read_text() == "after"
