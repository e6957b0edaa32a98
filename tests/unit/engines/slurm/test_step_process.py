"""A step under way, with programs that stand for srun."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from persia_cli.engines.slurm.step_process import StepProcess
from persia_cli.errors import RoleError, UserError
from tests.conftest import poll_for

LIMIT_S = 20.0


@contextmanager
def step(log: Path, lines: str, given: str = "") -> Iterator[StepProcess]:
    made = StepProcess("nn-worker-0", "n1", ["sh", "-c", lines], given, log)
    try:
        yield made
    finally:
        made.close()


def ended(made: StepProcess) -> StepProcess:
    poll_for(lambda: made.exit_code is not None, LIMIT_S, "the end of a step")
    return made


def test_it_is_given_its_secret_by_its_input_and_tells_where_it_listens(tmp_path: Path) -> None:
    log = tmp_path / "early.log"
    lines = 'read key; read rest; [ "$key $rest" = "secret and" ] && echo listening at tcp://10.0.0.1:7 && read -r end'
    log.write_text("listening at tcp://10.0.0.1:6\n")  # of an earlier start
    with step(log, f"{lines}; sleep 60", "secret\nand\n") as made:
        poll_for(lambda: made.listens_at, LIMIT_S, "an address")
        assert made.listens_at == "tcp://10.0.0.1:7"
        made.move_log(tmp_path / "roles" / "late.log")
        assert made.listens_at == "tcp://10.0.0.1:7"
        assert not log.exists()
        made.signal(signal.SIGTERM)
        assert ended(made).exit_code == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("lines", "is_lost", "kind", "sentence"),
    [
        ("exit 0", False, RoleError, "it said nothing"),
        ("exit 75", False, RoleError, "it said nothing"),
        ("echo 'error: no data'; exit 2", False, UserError, "^nn-worker-0 on n1: no data$"),
        ("echo 'error: it died'; exit 1", False, RoleError, "^nn-worker-0 on n1: it died"),
        ("kill -9 $$", True, RoleError, "^nn-worker-0 on n1: was ended by signal 9"),
        ("exit 137", True, RoleError, "^nn-worker-0 on n1: was ended by signal 9"),
        ("echo 'srun: error: Node failure on n1'; exit 1", True, RoleError, "on n1: srun: error: Node failure on n1"),
    ],
)
def test_its_end_says_whether_the_replica_or_its_place_failed(
    lines: str, is_lost: bool, kind: type[Exception], sentence: str, tmp_path: Path
) -> None:
    with step(tmp_path / "log", lines) as made:
        assert ended(made).is_lost == is_lost
        with pytest.raises(kind, match=sentence):
            raise made.failure()


def test_a_failure_has_the_end_of_the_log(tmp_path: Path) -> None:
    with step(tmp_path / "log", "seq 100; echo 'error: it died'; exit 1") as made:
        [note] = ended(made).failure().__notes__
    lines = note.splitlines()
    assert lines[0] == "The end of the log of nn-worker-0 on n1:"
    assert (len(lines), lines[1], lines[-1]) == (21, "  82", "  error: it died")
