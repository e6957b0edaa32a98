"""The folder of a sweep: what was asked for, one run directory per point, and the results so far."""

import csv
import fcntl
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from persia_cli.config.record import to_yaml
from persia_cli.config.schema import Run
from persia_cli.errors import UserError
from persia_cli.observe.outcome import Figures
from persia_cli.plan.grid import SEED, Point

SWEEP = "sweep.json"
RESULTS = "results.json"
TABLE = "results.csv"
FRONTIER = "frontier.png"

_LONGEST_NAME = 80


@dataclass(frozen=True)
class Outcome:
    """How a point ended."""

    point: Point
    seed: str
    run_dir: str
    """Relative to the folder of the sweep."""
    seconds: float
    """From the start of its process to its end."""
    figures: Figures | None
    error: str | None
    """Why it failed; None if it did not."""


@dataclass(frozen=True)
class Ask:
    """What a sweep was asked for: everything that resuming it needs."""

    words: tuple[str, ...]
    conf_dirs: tuple[str, ...]
    baseline: str | None
    working_dir: str
    """Where it was begun; the words may hold relative paths."""

    def write(self, folder: Path, runs: Sequence[Run]) -> None:
        """Make the folder and write this into it; raises UserError if it cannot be made."""
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise UserError(f"cannot make the folder of the sweep {folder}: {error.strerror}; give --folder") from error
        _write(folder / SWEEP, asdict(self) | {"configs": [digest(run) for run in runs]})

    @classmethod
    def read(cls, folder: Path) -> tuple["Ask", list[str]]:
        """Read what `write` wrote, and the digests of the runs; raises UserError if there is no sweep."""
        try:
            values = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
            ask = cls(tuple(values["words"]), tuple(values["conf_dirs"]), values["baseline"], values["working_dir"])
            return ask, list(values["configs"])
        except FileNotFoundError:
            raise UserError(f"{folder} holds no sweep: there is no {folder / SWEEP}") from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{folder / SWEEP} cannot be read ({type(error).__name__}); start a new sweep") from error


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder while the context lasts; raises UserError if another process trains its points now.

    The kernel lets go of the lock when the process ends, however it does.
    """
    with (folder / SWEEP).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is training the points of {folder}; wait for it, or stop it") from None
        yield


def digest(run: Run) -> str:
    """Return a short name of a run's configuration, by its content."""
    return hashlib.blake2b(to_yaml(run).encode(), digest_size=16).hexdigest()


def run_dir_of(folder: Path, number: int, point: Point) -> Path:
    """Return a run directory for a point that is not there yet: its number and values, and another number if needed."""
    values = "-".join(value for _, value in point.swept)
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", values).strip("-.")[:_LONGEST_NAME]
    name = f"{number + 1:03}-{plain}".rstrip("-")
    tries = (folder / "points" / (name if again == 1 else f"{name}-again-{again}") for again in count(1))
    return next(path for path in tries if not path.exists())


def write_results(folder: Path, outcomes: Sequence[Outcome]) -> None:
    """Write how the points ended, as JSON and as a table; the files appear whole or not at all."""
    _write(folder / RESULTS, [point_object(outcome) for outcome in outcomes])
    keys = list(dict.fromkeys(key for outcome in outcomes for key, _ in outcome.point.swept if key != SEED))
    part = folder / f"{TABLE}.part"
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = ["samples_per_s", "auc", "log_loss", "steps", "staleness_max", "staleness_share"]
        writer.writerow([*keys, SEED, "state", *names, "seconds", "run_dir", "error"])
        for outcome in outcomes:
            values = dict(outcome.point.swept)
            told = [getattr(outcome.figures, name) if outcome.figures else None for name in names]
            state = "failed" if outcome.error else "done"
            line = [values.get(key) for key in keys] + [outcome.seed, state, *told, outcome.seconds, outcome.run_dir]
            writer.writerow([*line, outcome.error])
    part.replace(folder / TABLE)


def read_results(folder: Path) -> list[Outcome]:
    """Read what `write_results` wrote, nothing if there is nothing; raises UserError if it is damaged."""
    path = folder / RESULTS
    if not path.exists():
        return []
    try:
        return [_outcome(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}); start a new sweep") from error


def point_object(outcome: Outcome) -> dict[str, Any]:
    """Return a point for JSON."""
    figures = outcome.figures and asdict(outcome.figures)
    return {
        "words": outcome.point.words,
        "swept": dict(outcome.point.swept),
        "seed": outcome.seed,
        "run_dir": outcome.run_dir,
        "seconds": outcome.seconds,
        "figures": figures,
        "error": outcome.error,
    }


def _outcome(entry: dict[str, Any]) -> Outcome:
    return Outcome(
        point=Point(tuple(entry["words"]), tuple(entry["swept"].items())),
        seed=entry["seed"],
        run_dir=entry["run_dir"],
        seconds=entry["seconds"],
        figures=entry["figures"] and Figures(**entry["figures"]),
        error=entry["error"],
    )


def _write(path: Path, value: Any) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)
