"""Every recipe, network and mode has the accuracy of tests/accuracy.yaml."""

from pathlib import Path

import pytest

from persia_cli.config.available import groups, primaries
from tests.accuracy.gates import Gate, read_gates, run_gate
from tests.conftest import shared_data


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gates")


def cases() -> list[object]:
    marks = {True: [], False: [pytest.mark.slow, pytest.mark.timeout(900)]}
    return [pytest.param(gate, id=str(gate).replace(" ", "-"), marks=marks[gate.small]) for gate in read_gates().gates]


def test_no_configuration_network_or_mode_is_without_a_gate() -> None:
    gates = read_gates()
    read = {gates.data[gate.data].conf for gate in gates.gates}
    # Those without a gate: generated, or of data that is not available.
    absent = {"base", "shop", "synthetic", "movielens_25m", "criteo_x1", "criteo_x4", "avazu_x1", "avazu_x4"}
    # `python -m scripts.measure sequences` measures these.
    absent |= {"beauty", "movielens_next"}
    assert read == set(primaries()) - absent
    options = groups()
    assert {gate.mode for gate in gates.gates} == set(options["mode"])
    # Selected by a configuration, or too large for a test.
    own = {
        "custom",
        "branches",
        "din",
        "din_taobao",
        "ffnn_paper",
        "dien",
        "bst",
        "two_tower",
        "sasrec",
        "ligr",
        "hstu",
    }
    assert {gate.model for gate in gates.gates} - {"(own)"} == set(options["model"]) - own


@pytest.mark.parametrize("gate", cases())
def test_a_gate(gate: Gate, folder: Path) -> None:
    reached = run_gate(gate, folder, shared_data())
    if reached is None:
        pytest.skip(f"no raw data of {gate.data}: set PERSIA_TEST_DATA")
    assert reached.passed, f"\n{reached}"
