"""The folder of a sweep: the request, one run directory per point, and the record of the points.

`results.json` is the only record. A point is in it from before its process starts, in the order of their starts, so a
sweep that ends at any moment is continued from it alone.
"""

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec

from persia_cli.config import record
from persia_cli.config.record import to_yaml
from persia_cli.config.schema import Run
from persia_cli.disk import claim, claim_folder, read_regular, replacing, write_whole, writing
from persia_cli.errors import UserError
from persia_cli.observe.outcome import JobMetrics
from persia_cli.sweeps.points import FOLD, SEED, Point

SWEEP = record.SWEEP
RESULTS = "results.json"
TABLE = "results.csv"
SETTINGS = "settings.json"
SETTINGS_TABLE = "settings.csv"
PAGE = "sweep.html"

_LONGEST_NAME = 80

UNFINISHED = "it was interrupted"
"""The error of a point that is being trained, or was when its sweep ended."""

Sampler = Literal["tpe", "random"]


@dataclass(frozen=True)
class PointOutcome:
    """The result of a point."""

    point: Point
    seed: str
    run_dir: str
    """Path relative to the folder of the sweep."""
    seconds: float
    """Time from the start of its process to its end."""
    metrics: JobMetrics | None
    error: str | None
    """Reason why it failed, or UNFINISHED; None if it did neither."""
    pruned: bool = False
    """True if a search ended it early; its metrics are those up to there."""

    @property
    def state(self) -> str:
        """`unfinished`, `failed`, `pruned` or `done`."""
        if self.error:
            return "unfinished" if self.error == UNFINISHED else "failed"
        return "pruned" if self.pruned else "done"

    @property
    def repetition(self) -> str:
        """The seed, and the fold if there are several, by which points of two settings are paired."""
        fold = dict(self.point.swept).get(FOLD)
        return self.seed if fold is None else f"{self.seed}, fold {fold}"


@dataclass(frozen=True)
class SearchRequest:
    """The request for a search: trials that a sampler chooses one after another."""

    sampler: Sampler
    trials: int
    prune: bool
    """True: trials whose evaluations are worse than those of others end early."""
    best: int = 0
    seeds: int = 0
    """So many of the best settings, and the defaults, are trained again, on so many other seeds each."""

    @property
    def total(self) -> int:
        """The number of points, if there are so many settings."""
        return 1 + self.trials + (self.best + 1) * self.seeds


@dataclass(frozen=True)
class SweepRequest:
    """The request for a sweep: all that is needed to resume it."""

    arguments: tuple[str, ...]
    conf_dirs: tuple[str, ...]
    baseline: str | None
    metric: str | None
    working_dir: str
    """Folder in which it was started; `arguments` may contain relative paths."""
    search: SearchRequest | None = None
    """The choice of points; None for every combination."""

    def write(self, folder: Path, runs: Sequence[Run], numbered: bool = False) -> Path:
        """Create the folder and write this to it; returns the folder.

        With `numbered`, a number is added to the name if it is taken. Otherwise raises UserError if the folder exists,
        DiskError if it cannot be created.
        """
        if numbered:
            folder = claim_folder(folder)
        else:
            with writing(folder):
                try:
                    folder.mkdir(parents=True)
                except FileExistsError:
                    raise UserError(f"{folder} exists already; name a folder that does not") from None
        _write(folder / SWEEP, asdict(self) | {"configs": [digest(run) for run in runs]})
        return folder

    @classmethod
    def read(cls, folder: Path) -> tuple["SweepRequest", list[str]]:
        """Return the request and the digests of the runs from a folder; raises UserError if there is no sweep."""
        try:
            values = json.loads(read_regular(folder / SWEEP))
            return msgspec.convert(values, cls), msgspec.convert(values["configs"], list[str])
        except FileNotFoundError:
            raise UserError(f"{folder} does not contain a sweep: {folder / SWEEP} is missing") from None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(f"{folder / SWEEP} cannot be read ({type(error).__name__}); start a new sweep") from error


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock a sweep's folder; raises UserError if another process trains its points now.

    The kernel frees the lock when the process ends in any way.
    """
    with (folder / SWEEP).open("rb") as file:
        if not claim(file.fileno()):
            raise UserError(f"another process is training the points of {folder}; wait for it, or stop it")
        yield


def counted(outcomes: Sequence[PointOutcome]) -> list[PointOutcome]:
    """Return the outcomes by which settings are compared: of points that trained to their end, or failed.

    The trial that chose a setting to repeat does not count for it: it is the best of many by luck too.
    """
    ended = [outcome for outcome in outcomes if outcome.state in ("done", "failed")]
    again = {outcome.point.setting for outcome in ended if outcome.point.names_seed}
    return [outcome for outcome in ended if outcome.point.names_seed or outcome.point.setting not in again]


def digest(run: Run) -> str:
    """Return a hash of a run's configuration."""
    return hashlib.blake2b(to_yaml(run).encode(), digest_size=16).hexdigest()


def run_dir_of(folder: Path, number: int, point: Point) -> Path:
    """Return a new run directory for a point, named after its number and values."""
    values = "-".join(value for _, value in point.swept)
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", values).strip("-.")[:_LONGEST_NAME]
    name = f"{number + 1:03}-{plain}".rstrip("-")
    tries = (folder / record.POINTS / (name if again == 1 else f"{name}-again-{again}") for again in count(1))
    return next(path for path in tries if not path.exists())


def write_results(folder: Path, outcomes: Sequence[PointOutcome]) -> None:
    """Write the results of the points as JSON and as CSV; the files are atomic."""
    _write(folder / RESULTS, [point_object(outcome) for outcome in outcomes])
    keys = dict.fromkeys(key for outcome in outcomes for key, _ in outcome.point.swept if key != SEED)
    quality = dict.fromkeys(name for outcome in outcomes if outcome.metrics for name in outcome.metrics.quality)
    names = ["judged_step", "steps", "staleness_max", "staleness_fraction"]
    columns = [*keys, SEED, "state", "samples_per_s", *quality, *names, "seconds", "run_dir", "error"]
    _write_table(folder / TABLE, columns, [_line(outcome, ["samples_per_s", *names]) for outcome in outcomes])


def _line(outcome: PointOutcome, names: Sequence[str]) -> dict[str, Any]:
    """Return the result of a point by column, with these of its metrics and all of its quality."""
    line = dict(outcome.point.swept) | {SEED: outcome.seed, "state": outcome.state}
    if outcome.metrics:
        line |= {name: getattr(outcome.metrics, name) for name in names} | outcome.metrics.quality
    return line | {"seconds": outcome.seconds, "run_dir": outcome.run_dir, "error": outcome.error}


def write_settings(folder: Path, settings: Sequence[Mapping[str, Any]], flat: Sequence[Mapping[str, Any]]) -> None:
    """Write the comparison of settings as JSON, and as CSV with a row for each setting."""
    _write(folder / SETTINGS, settings)
    _write_table(folder / SETTINGS_TABLE, list(dict.fromkeys(key for setting in flat for key in setting)), flat)


def read_results(folder: Path) -> list[PointOutcome]:
    """Return the results that `write_results` wrote, none if there is no file; raises UserError if it is damaged."""
    path = folder / RESULTS
    if not path.exists():
        return []
    try:
        return [_outcome(entry) for entry in json.loads(read_regular(path))]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}); start a new sweep") from error


def point_object(outcome: PointOutcome) -> dict[str, Any]:
    """Return the result of a point as an object for JSON."""
    return {
        "arguments": outcome.point.arguments,
        "swept": dict(outcome.point.swept),
        "seed": outcome.seed,
        "run_dir": outcome.run_dir,
        "seconds": outcome.seconds,
        "metrics": outcome.metrics and asdict(outcome.metrics),
        "error": outcome.error,
        "pruned": outcome.pruned,
    }


def _outcome(entry: dict[str, Any]) -> PointOutcome:
    point = {"arguments": entry["arguments"], "swept": list(entry["swept"].items())}
    return msgspec.convert(entry | {"point": point}, PointOutcome)


def _write_table(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with replacing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def _write(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
