"""A job over several hosts that share neither memory nor files computes what it does on one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from persia_cli.launch.job import JobResult
from tests.support.host_job import NO_FILES, listeners, spread, started_on
from tests.support.hosts import Host, lab, needs_hosts
from tests.support.jobs import CRITEO_FFNN, evaluation, losses, train
from tests.support.small import replicas

pytestmark = [pytest.mark.processes, pytest.mark.slow, needs_hosts, pytest.mark.timeout(400)]

SIZE = ["train.steps=60", "train.batch_size=512", "train.log_every_steps=1"]
IRREGULAR = ("refused", "foreign", "turned_away", "malformed", "no_room")
CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]


@pytest.fixture(scope="module")
def words(criteo_rows: Path) -> list[str]:
    return [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "mode=sync", *SIZE, *CLUSTER, *NO_FILES]


@pytest.fixture(scope="module")
def local(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> JobResult:
    return train([*words, "cluster=local"], tmp_path_factory.mktemp("local") / "run")


@pytest.fixture
def hosts(criteo_rows: Path) -> Iterator[list[Host]]:
    with lab(4, shown=[criteo_rows]) as made:
        yield made


def test_a_sync_run_over_four_hosts_has_the_bits_of_one_on_this_machine(
    words: list[str], local: JobResult, hosts: list[Host], tmp_path: Path
) -> None:
    with started_on(spread(hosts), words, tmp_path / "logs") as job:
        result = job.result()
        assert losses(result) == losses(local)
        for figure in ("auc", "log_loss", "ne", "calibration"):
            assert evaluation(result)[figure] == evaluation(local)[figure]
        [ready] = [event for event in result.events if event["event"] == "ready"]
        assert {each["name"]: each["host"] for each in ready["replicas"]} == {
            name: host.name for name, host in spread(hosts).items()
        }
        assert not any((host.root / "tmp" / "run").exists() for host in hosts[1:])
        for role in ("embedding-server", "embedding-worker", "nn-worker", "data-loader"):
            for replica in replicas(result, role):
                assert not any(replica["messages"][counter] for counter in IRREGULAR), replica


def test_each_role_listens_at_the_address_of_its_host_alone(hosts: list[Host], tmp_path: Path) -> None:
    words = ["conf=synthetic", *CLUSTER, *NO_FILES, "train.steps=100000", "dataset.generator.train_rows=100000000"]
    with started_on(spread(hosts), words, tmp_path / "logs") as job:
        job.wait_for_training()
        assert [listeners(host) for host in hosts] == [
            {hosts[0].address},
            set(),
            {hosts[2].address},
            {hosts[3].address},
        ]


def test_checkpoints_in_a_folder_that_a_host_does_not_have_are_refused(hosts: list[Host], tmp_path: Path) -> None:
    with started_on(spread(hosts), ["conf=synthetic", *CLUSTER], tmp_path / "logs") as job:
        codes = job.end()
    assert codes["coordinator-0"] == 2
    said = job.said("coordinator-0")
    assert "is to save its part of checkpoints in /tmp/run, and its machine, host" in said
    assert "set checkpoint.path to a URI that all reach" in said
