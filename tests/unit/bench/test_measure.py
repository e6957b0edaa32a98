"""`python -m scripts.measure`: the list of comparisons, alternating timing, one table, one JSON object, targets."""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from persia_cli.bench.result import Result, Side
from persia_cli.config.compose import compose_run
from persia_cli.observe.machine import Processor
from scripts.measure import Given, Note, __main__, report, targets
from scripts.measure.comparisons import sequences, store, windows
from scripts.measure.timing import Timing, Turn, alternate, compared, measured

TURIN = Processor("EPYC", ("avx2", "avx512f", "avx512_bf16"))
TARGET = ["conf=criteo", "train.batch_size=4096", "optimizer=adagrad", "cluster.embedding_servers=2"]
MODES = ["conf=criteo", "train.batch_size=512", "mode.staleness=8"]


def test_a_ratio_is_how_many_times_faster_we_are() -> None:
    times = {"persia": Timing(2.0, 1.0, 4.0), "baseline": Timing(5.0, 5.0, 5.0), "other": Timing(1.0, 1.0, 1.0)}
    result = compared("what", times, 10.0, "rows/s")
    ours, theirs, _ = result.sides
    assert (ours.median, ours.least, ours.most, theirs.median) == (5.0, 2.5, 10.0, 2.0)
    assert ours.ratios == {"baseline": 2.5, "other": 0.5}
    assert theirs.ratios == {}


class FakeClock:
    """A clock that stands still but for what calls take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.called: list[str] = []

    def __call__(self) -> float:
        return self.now

    def call(self, name: str, *seconds: float):
        """Return a function that takes some seconds when called, the last of them from then on."""
        left = list(seconds)

        def run() -> None:
            self.called.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_the_order_is_reversed_each_round_and_preparing_is_not_timed() -> None:
    clock = FakeClock()
    turns = {
        "a": Turn(clock.call("a", 5.0, 1.0, 3.0), loops=1),
        "b": Turn(clock.call("b", 1.0), prepare=clock.call("prepare", 100.0), loops=2),
    }
    timed = alternate(turns, rounds=3, clock=clock)
    assert " ".join(clock.called) == "a prepare b b " + "prepare b b a " + "a prepare b b"
    assert timed == {"a": Timing(3.0, 1.0, 5.0), "b": Timing(1.0, 1.0, 1.0)}


def test_as_many_calls_as_fill_the_time_judged_by_the_second() -> None:
    clock = FakeClock()
    timed = alternate({"fast": clock.call("fast", 3.0, 0.01)}, rounds=2, at_least=0.05, clock=clock)
    assert timed["fast"].median == pytest.approx(0.01)
    assert len(clock.called) == 2 + 2 * 5


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A comparison that measures what its options say."""

    def options(parser: ArgumentParser) -> None:
        parser.add_argument("--ours", type=float, default=3.0)
        parser.set_defaults(rounds=2)

    def measure(given: Given, note: Note) -> Iterator[Result]:
        note("counting")
        yield measured("dedup of nothing", "Mids/s", {"persia": [given.ours] * given.rounds, "np.unique": [1.0]})

    made = SimpleNamespace(__doc__="Nothing.", options=options, measure=measure)
    monkeypatch.setattr(__main__, "described", lambda: {"nothing": "Nothing."})
    monkeypatch.setattr(__main__, "import_module", lambda name: made)
    return made


@pytest.mark.usefixtures("comparison")
def test_a_comparison_is_a_table_that_is_held_against_the_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["nothing"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["dedup", "of", "nothing", "3", "3", "3", "Mids/s"] in [line[:7] for line in table]
    assert ["np.unique", "1", "1", "1", "Mids/s", "3.000", "x"] in [line[:7] for line in table]
    assert table[-1] == ["1", "of", "1", "targets", "met"]
    assert __main__.main(["nothing", "--ours", "2"]) == 1
    assert "MISSED  dedup of nothing: persia / np.unique: 2.000, at least 2.8" in capsys.readouterr().out
    assert __main__.main(["nothing", "--ours", "2", "--quick"]) == 0
    assert "targets" not in capsys.readouterr().out


@pytest.mark.usefixtures("comparison")
def test_its_json_is_judged_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert __main__.main(["nothing", "--ours", "2", "--json"]) == 0
    ended = capsys.readouterr()
    assert ended.err == ""
    printed = json.loads(ended.out)
    assert (printed["benchmark"], printed["quick"], printed["results"][0]["rounds"]) == ("nothing", False, 2)
    assert {"cpu", "cores", "memory", "huge_pages", "libraries"} <= printed["machine"].keys()
    (tmp_path / "x.json").write_text(ended.out)
    assert __main__.main(["targets", str(tmp_path / "x.json")]) == 1


def test_a_model_that_follows_is_held_against_its_target() -> None:
    draw = np.random.default_rng(0)
    frozen = (0.7 + 0.001 * draw.random((5, 10))).tolist()
    for gain in (0.0, 0.01):
        following = [[auc + gain + 0.0001 * draw.normal() for auc in seed] for seed in frozen]
        [judged] = targets.judge(list(windows.results("deepfm", following, frozen)))
        assert judged.met == (gain > 0)
    assert windows.auc(np.array([0.1, 0.2, 0.2, 0.3]), np.array([0, 0, 1, 1])) == 3.5 / 4


def test_cases_of_sequences_are_held_against_their_targets() -> None:
    outcome, drawn = sequences.Outcome(100.0, recall=0.3, ndcg=0.2, cpu_s=50.0), np.random.default_rng(0)
    met = {
        name: [
            judged.met
            for judged in targets.judge(list(sequences.results(case, {side: [outcome] * 5 for side in case.sides})))
        ]
        for name, case in sequences.CASES.items()
    }
    assert met == {
        "beauty": [True, True],
        "sasrec": [True, True],
        "hstu": [True, True],
        "networks": [False],
        "staleness": [True],
        "speed": [True],
    }
    worse = [outcome._replace(recall=0.29 + 0.001 * draw) for draw in drawn.random(5)]
    found = sequences.results(sequences.CASES["staleness"], {"hybrid 3": worse, "sync": [outcome] * 5})
    [judged] = targets.judge(list(found))
    assert not judged.met
    assert judged.value > 10


def test_results_before_an_error_are_printed(comparison: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    def measure(given: Given, note: Note) -> Iterator[Result]:
        yield measured("first", "AUC", {"persia": [0.75], "other": [0.5]})
        raise OSError

    comparison.measure = measure
    with pytest.raises(OSError):  # noqa: PT011
        __main__.main(["nothing"])
    assert "+0.2500" in capsys.readouterr().out


def test_a_name_that_is_no_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["nothing"]) == 2
    assert "there is no comparison 'nothing'; there are" in capsys.readouterr().err


def test_every_comparison_has_a_line_in_the_list_and_a_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main([]) == 0
    printed = capsys.readouterr().out
    for name, text in __main__.described().items():
        assert text.endswith(".")
        assert name in printed
        with pytest.raises(SystemExit):
            __main__.main([name, "--help"])


def test_sides_show_what_they_have_measured(capsys: pytest.CaptureFixture[str]) -> None:
    sides = [Side("sync", 1.0, 1.0, 1.0, {"linear": 0.5}), Side("hybrid", 2.0, 2.0, 2.0, auc=0.8123)]
    report.show([Result("", "0 ms", "samples/s", sides)], markdown=True)
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [head.strip() for head in lines[0]][5:] == ["ours is", "linear", "AUC"]
    assert [cell.strip() for cell in lines[2]] == ["0 ms: sync", "1", "1", "1", "samples/s", "", "0.5", ""]
    assert lines[3][-1].strip() == "0.8123"


def judged(results: list[Result], words: list[str] | None = None) -> list[tuple[float, float, bool]]:
    """Judge the JSON object of a benchmark."""
    machine = {"cpu": TURIN.model, "features": TURIN.features}
    printed: dict[str, Any] = {"quick": False, "machine": machine, "results": [asdict(result) for result in results]}
    if words is not None:
        printed["run"] = compose_run(words).model_dump(mode="json")
    found = targets.judge_json(json.loads(json.dumps(printed)))
    return [(each.value, each.target.bound, each.met) for each in found]


def side(ratios: dict[str, float], name: str = "persia", speed: float = 1e6) -> Side:
    return Side(name, speed, speed, speed, ratios)


@pytest.mark.parametrize(
    ("words", "dense", "torch"),
    [([], 0.95, 1.03), (["train.threads=2"], 0.85, 1.03), (["train.batch_size=512"], None, None)],
)
def test_a_job_against_its_baselines(words: list[str], dense: float | None, torch: float | None) -> None:
    result = Result("ring", "criteo", "samples/s", [side({"torch": 1.1, "dense": 0.9})])
    expected = [(1.1, torch, True)] if torch else []
    expected += [(0.9, dense, dense < 0.9)] if dense else []
    assert judged([result], [*TARGET, *words]) == expected
    # Targets are set for networks on the CPU.
    on_gpu = replace(result, sides=[replace(result.sides[0], gpu_busy=0.5)])
    assert judged([on_gpu], [*TARGET, *words]) == []


@pytest.mark.parametrize(("undelayed", "expected"), [(60_000.0, [(0.8, 0.9, False), (4.0, 3.0, True)]), (40_000.0, [])])
def test_modes_are_judged_where_a_step_is_short(undelayed: float, expected: list[tuple[float, float, bool]]) -> None:
    free = Result("0 ms", "criteo", "samples/s", [side({}, "hybrid", undelayed)])
    delayed = [side({"itself without delay": 0.8, "sync": 4.0}, "hybrid")]
    results = [free, Result("5 ms", "criteo", "samples/s", delayed), Result("5 ms, 1000 Mbit/s", "", "", delayed)]
    assert judged(results, MODES) == expected


@pytest.mark.parametrize(
    ("name", "ratios", "expected"),
    [
        (
            "look-up, dim 16, 10M rows, uniform",
            {"torch.index_select": 1.0, "gather limit": 0.3},
            [(1.0, 0.95, True), (0.3, 0.33, False)],
        ),
        ("look-up, dim 16, 1.46M rows, uniform", {"torch.index_select": 1.0, "gather limit": 0.3}, []),
        ("update Adagrad, dim 64, 2M rows, uniform, rows kept", {"read-modify-write limit": 0.7}, [(0.7, 0.8, False)]),
        (
            "first model, churn, log loss",
            {"LightGBM": 1.2, "logistic regression": 0.9},
            [(1.2, 1.1, False), (0.9, 1.1, True)],
        ),
    ],
)
def test_parts_of_the_store(name: str, ratios: dict[str, float], expected: list[tuple[float, float, bool]]) -> None:
    assert judged([Result("case", name, "Mrows/s", [side(ratios)])]) == expected


@pytest.mark.parametrize(
    ("name", "results"), [("batches", 7), ("checkpoints", 6), pytest.param("rows", 7, marks=pytest.mark.slow)]
)
def test_parts_of_the_store_are_measured_and_leave_nothing(
    name: str, results: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert __main__.main([name, "--quick", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == results
    assert not list(tmp_path.iterdir())


def test_the_step_that_is_timed_trains_as_torch_does() -> None:
    assert store.greatest_difference(5, store.Match("adagrad", "torch")) < store.TOLERANCE
