"""The import of the Python API, and its lines."""

import subprocess
import sys
from pathlib import Path

import pytest

import persia_cli as persia
from persia_cli.api.run import Callbacks

HEAVY = {"hydra", "numba", "numpy", "pandas", "pyarrow", "pydantic", "rich", "torch", "typer", "yaml", "zmq"}
LIMIT_S = 0.2


def test_importing_the_api_is_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; began = time.process_time(); import persia_cli as persia; "
        "persia.train, persia.open, persia.sweep, persia.recommend, persia.Run, persia.PersiaError; "
        "print(time.process_time() - began, *sys.modules)"
    )
    ended = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    seconds, *modules = min(each.stdout for each in ended).split()
    assert HEAVY & set(modules) == set()
    assert float(seconds) < LIMIT_S


def test_other_names_are_missing_and_no_module_takes_the_place_of_a_function() -> None:
    assert not hasattr(persia, "no_such_name")
    assert set(persia.__all__) <= set(dir(persia))
    assert set(persia.__all__).isdisjoint(path.stem for path in Path(persia.__file__).parent.iterdir())


def test_a_callback_gets_its_lines_as_unchangeable_objects() -> None:
    seen, stops = [], []
    callbacks = Callbacks(seen.append, None, None)
    callbacks.take({"event": "metrics", "split": "train", "step": 5, "recall@10": 0.5}, lambda: stops.append(1))
    callbacks.take({"event": "metrics", "split": "eval", "step": 5}, lambda: None)
    callbacks.take({"event": "saved", "step": 5}, lambda: None)
    [line] = seen
    assert (line.step, line["recall@10"]) == (5, 0.5)
    with pytest.raises(AttributeError, match="auc"):
        print(line.auc)
    with pytest.raises(AttributeError):
        line.step = 6
    assert line.step == 5
    line.stop()
    assert stops == [1]
