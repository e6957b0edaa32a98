"""A job over several hosts that share neither memory nor files computes what it does on one."""

import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest

from persia_cli.observe.journal import METRICS, read_journal
from persia_cli.plan.job import ROLES
from persia_cli.wire.secret import write_keys
from tests.conftest import poll_for
from tests.support import far_attacker
from tests.support.host_job import KEYS, NO_FILES, PORT, listeners, spread, started_on
from tests.support.hosts import Host, lab, needs_hosts
from tests.support.jobs import CRITEO_FFNN, evaluation, losses, train
from tests.support.secrecy import leaks_in_files, leaks_in_processes
from tests.support.small import WORDS

pytestmark = [pytest.mark.slow, needs_hosts, pytest.mark.timeout(400)]

SIZE = ["train.steps=60", "train.batch_size=512", "train.log_every_steps=1"]
ENDLESS = ["conf=synthetic", "train.steps=100000", "dataset.generator.train_rows=100000000"]
CLUSTER = ["cluster.embedding_servers=2", "cluster.embedding_workers=2"]
SMALL = [*WORDS, *CLUSTER, *NO_FILES]


@pytest.fixture
def hosts(criteo_rows: Path) -> Iterator[list[Host]]:
    with lab(4, shown=[criteo_rows]) as made:
        yield made


def test_two_ranks_on_two_hosts_compute_what_one_does(hosts: list[Host], criteo_rows: Path, tmp_path: Path) -> None:
    words = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "mode=sync", *SIZE, *CLUSTER, *NO_FILES]
    with started_on(spread(hosts, ranks=2), [*words, "cluster.nn_workers=2"], tmp_path / "logs") as job:
        two = losses(job.result())
    one = losses(train([*words, "cluster=embedded"], tmp_path / "one"))
    assert len(two) == len(one)
    assert two[:20] == pytest.approx(one[:20], rel=2e-5)  # then one rounding has become many


def test_hybrid_over_four_hosts_ranks_as_well_as_on_this_machine(
    hosts: list[Host], criteo_rows: Path, tmp_path: Path
) -> None:
    """Whose rows are how stale depends on the moment, so means of two seeds are compared."""
    hybrid = [*CRITEO_FFNN, f"dataset.path='{criteo_rows}'", "mode=hybrid", *CLUSTER, *NO_FILES]
    there, here = [], []
    for seed in range(2):
        words = [*hybrid, f"seed={seed}"]
        with started_on(spread(hosts), words, tmp_path / f"logs-{seed}") as job:
            there.append(evaluation(job.result())["auc"])
        for host in hosts:
            host.run(["rm", "-rf", "/tmp/run", "/tmp/keys"])
        here.append(evaluation(train([*words, "cluster=embedded"], tmp_path / f"here-{seed}"))["auc"])
    assert min(there) > 0.74
    assert abs(np.mean(there) - np.mean(here)) <= 0.002, (there, here)


def test_each_role_listens_at_the_address_of_its_host_alone(hosts: list[Host], tmp_path: Path) -> None:
    words = [*ENDLESS, *CLUSTER, *NO_FILES, "cluster.nn_workers=2"]
    with started_on(spread(hosts, ranks=2), words, tmp_path / "logs") as job:
        job.wait_for_training()
        at = [listeners(host) for host in hosts]
    assert [{address.rpartition(":")[0] for address in each} for each in at] == [
        {f"tcp://{host.address}"} for host in hosts
    ]
    assert f"tcp://{hosts[0].address}:{PORT}" in at[0]


ASK = """
from pathlib import Path
import sys
from persia_cli.wire import sockets
from persia_cli.wire.sockets import Context
from persia_cli.wire.frames import decode, encode
from persia_cli.wire.job_messages import Next
from persia_cli.wire.message import Sender
from persia_cli.wire.secret import read_secret
with Context(read_secret(Path(sys.argv[1]))) as context:
    dealer = sockets.dealer(context, sys.argv[2], b"friend")
    dealer.send_multipart(encode(1, Next(Sender("nn-worker", 7, 1), 0)))
    assert dealer.poll(int(sys.argv[3])), "no answer"
    print(decode(dealer.recv_multipart(copy=False))[1].reason)
    dealer.close()
"""


def test_only_clients_with_the_keys_connect_from_another_host(tmp_path: Path) -> None:
    with lab(2) as [first, second], started_on({"coordinator-0": first}, SMALL, tmp_path / "logs") as job:
        [address] = listeners(first)
        attack = second.start([sys.executable, far_attacker.__file__, job.keys.public.decode(), address], PIPE)
        assert attack.outer.stdout is not None
        assert attack.outer.stdout.readline() == b"begun\n"
        refused = f"connections to {address} were refused, one since it "
        poll_for(lambda: job.said("coordinator-0").count(refused) >= 2, 60.0, "two lines about the attack")
        assert attack.poll() is None
        attack.kill()
        attack.outer.stdout.close()
        write_keys(second.root / "tmp" / "keys", job.keys)
        code, said = second.run([sys.executable, "-c", ASK, str(KEYS), address, "20000"])
        assert code == 0, said
        assert "nn-worker-7" in said
        log = job.said("coordinator-0")
        assert "stranger" not in log
        counts = [int(line.split()[3]) for line in log.splitlines() if refused in line]
        assert sum(counts) > 100
        processes = [role.inner for role in job.roles.values()]
        assert not list(leaks_in_processes(job.keys, processes))
        found = leaks_in_files(job.keys, [tmp_path / "logs", first.root / "tmp"])
        assert [path.name for path in found] == ["keys"]


DEAD = Path("/tmp/dead")
DYING = f"""
import os
from persia_cli.__main__ import main
from persia_cli.wire import secret
is_right = secret._is_right
def answer_or_die(*request):
    if os.path.exists("{DEAD}"):
        raise RuntimeError("made up")
    return is_right(*request)
secret._is_right = answer_or_die
main()
"""
"""Roles whose authentication fails at the first client that comes after the file is there."""


def test_after_authentication_dies_only_connected_roles_train_on(tmp_path: Path) -> None:
    steps = 6000
    long = [*WORDS, f"dataset.generator.train_rows={32 * steps}", *NO_FILES]
    undisturbed = train([*long, "cluster=embedded"], tmp_path / "undisturbed")
    with lab(2) as [first, second]:
        all_on_one = {f"{role}-0": first for role in ROLES}
        with started_on(all_on_one, long, tmp_path / "logs", program=["-c", DYING]) as job:
            job.wait_for_training()
            (first.root / DEAD.relative_to("/")).touch()
            addresses = listeners(first)
            assert len(addresses) == len(ROLES) - 1
            write_keys(second.root / KEYS.relative_to("/"), job.keys)
            friends = [second.start([sys.executable, "-c", ASK, str(KEYS), address, "3000"]) for address in addresses]
            assert [friend.wait() for friend in friends] == [1] * len(friends), "clients with the keys got in"
            attack = second.start([sys.executable, far_attacker.__file__, job.keys.public.decode(), *addresses], PIPE)
            assert attack.outer.stdout is not None
            assert attack.outer.stdout.readline() == b"begun\n"
            begun_at = last_step(job.run_dir)
            result = job.result()
            attack.kill()
            attack.outer.stdout.close()
            assert "stranger" not in job.all_said()
            assert job.all_said().count("authentication has failed") == len(addresses)
    assert begun_at < steps, "the training was over before"
    assert losses(result) == losses(undisturbed)


def last_step(run_dir: Path) -> int:
    return max(line["step"] for line in read_journal(run_dir / METRICS))
