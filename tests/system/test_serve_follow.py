"""`persia serve` on a published folder: each answer is that of the version which it names, and no request fails."""

import http.client
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

from persia_cli.main import app
from persia_cli.publish.version import versions_of
from persia_cli.serving.following import Follower, folder_of
from persia_cli.serving.golden import read_golden
from persia_cli.serving.predictor import Predictor
from tests.conftest import poll_for
from tests.support.asgi import tensor
from tests.support.jobs import train
from tests.support.launched import is_running
from tests.support.published import Publication
from tests.system.test_serve import INFER, PERSIA, READY_S, Server, serving

SOON_S = 90.0
"""Deadline for what a server does within a second, on a slow machine."""
KILLS = 20
USERS = list(range(20))
INPUTS = [
    tensor("user", "INT64", USERS), tensor("item", "INT64", [1]), tensor("price", "FP32", [0.5]),
    tensor("words", "BYTES", ["lamp"]), tensor("words.lengths", "INT32", [1]),
]  # fmt: skip
BODY = json.dumps({"inputs": INPUTS}).encode()


def scores(export: Path) -> list[float]:
    """Return the predictions of a full export for the request."""
    predictor = Predictor.open(export)
    columns = {"user": np.array(USERS), "item": np.array([1]), "words": [["lamp"]], "price": np.float32([0.5])}
    return predictor.predict(predictor.fields.batch(columns)).values[:, 0].tolist()


class Clients:
    """Clients that ask all the time, on kept connections; each answer is compared with the offline scores."""

    def __init__(self, server: Server, offline: dict[str, list[float]], count: int = 2) -> None:
        self.offline, self.seen, self.failures = offline, Counter[str](), list[str]()
        self._server, self._ending = server, threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection = self._server.connect()
        while not self._ending.is_set():
            connection.request("POST", INFER, BODY)
            got = connection.getresponse()
            answer = json.loads(got.read())
            version = got.headers["x-model-version"]
            if got.status != 200 or answer["model_version"] != version:
                self.failures.append(f"{got.status} {answer}")
            elif answer["outputs"][0]["data"] != self.offline[version]:
                self.failures.append(f"{answer} is not version {version}")
            self.seen[version] += 1
            time.sleep(0.002)
        connection.close()

    def wait_for(self, version: int) -> None:
        """Wait until all further answers are of a version."""

        def is_served() -> bool:
            before = Counter(self.seen)
            time.sleep(0.1)
            return (self.seen - before).keys() == {str(version)}

        poll_for(is_served, SOON_S, f"version {version} is served")


def metric(server: Server, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", server.ask("GET", "/metrics").body.decode(), re.MULTILINE)
    return float(found[1]) if found else -1.0


def rollback(publication: Publication, version: str) -> None:
    command = [PERSIA, "rollback", publication.folder, version]
    subprocess.run(command, check=True, capture_output=True, timeout=SOON_S)


class Followed:
    """A publication, and the offline scores of its versions."""

    def __init__(self, place: Path) -> None:
        self.publication, self.offline = Publication(place), dict[str, list[float]]()
        self.publish(base=True)

    def publish(self, base: bool = False) -> int:
        """Publish a version, with its scores noted before it is announced."""
        made = self.publication
        version = made.publish_base() if base else made.publish_delta(made.random_changes(20))
        self.offline[str(version)] = scores(made.exports[version])
        made.announce()
        return version


def test_versions_are_followed_refused_and_rolled_back_without_a_failed_request(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    folder, options = followed.publication.folder, ("--workers", "2", "--max-lag", "3")
    with serving(folder, tmp_path / "server", *options) as server, Clients(server, followed.offline) as clients:
        for turn in range(6):
            clients.wait_for(followed.publish(base=turn == 3))
        assert metric(server, "persia_serving_version") == 7
        assert metric(server, "persia_serving_lag_seconds") < 3
        rollback(followed.publication, "5")
        clients.wait_for(5)
        rollback(followed.publication, "newest")
        clients.wait_for(7)
        following = followed.publication.folder / "delta-00000008" / "rows" / "0.parquet"
        rollback(followed.publication, "6")
        clients.wait_for(6)
        followed.publication.publish_delta(followed.publication.random_changes(20))
        followed.offline["8"] = scores(followed.publication.exports[8])
        content = following.read_bytes()
        following.write_bytes(content[:-5])
        followed.publication.announce()
        rollback(followed.publication, "newest")
        poll_for(lambda: metric(server, "persia_serving_refused_versions_total") == 1, SOON_S, "it is refused")
        poll_for(lambda: server.ask("GET", "/v2/health/ready").status == 503, SOON_S, "it is not ready")
        clients.wait_for(6)
        assert server.ask("GET", "/v2/health/live").status == 200
        following.write_bytes(content)
        clients.wait_for(8)
        poll_for(lambda: server.ask("GET", "/v2/health/ready").status == 200, SOON_S, "it is ready")
        assert server.ask("POST", INFER.replace("/infer", "/versions/8/infer"), BODY).status == 200
        assert server.ask("POST", INFER.replace("/infer", "/versions/7/infer"), BODY).status == 404
    assert clients.failures == []
    assert set(clients.seen) == {str(version) for version in range(1, 9)}
    text = server.log.read_text()
    assert "version 8 is refused: " in text
    assert "Traceback" not in text
    assert list((tmp_path / "server" / "tmp").glob("persia*")) == []


@pytest.mark.slow
def test_deaths_of_follower_and_workers_lose_no_version(tmp_path: Path) -> None:
    followed = Followed(tmp_path)
    with serving(followed.publication.folder, tmp_path / "server", "--workers", "1") as server:
        for _ in range(3):
            for process in psutil.Process(server.process.pid).children():
                process.kill()
            followed.publish()

            def is_served() -> bool:
                with suppress(OSError, http.client.HTTPException):
                    return server.ask("POST", INFER, BODY).headers["x-model-version"] == str(
                        followed.publication.version
                    )
                return False

            poll_for(is_served, READY_S, "the version is served")
            answer = json.loads(server.ask("POST", INFER, BODY).body)
            assert answer["outputs"][0]["data"] == followed.offline[str(followed.publication.version)]
        assert "before it was ready" not in server.log.read_text()
        damaged = followed.publication.folder / "delta-00000004" / "rows" / "0.parquet"
        os.truncate(damaged, 10)
    # A server that starts with a damaged version serves the one before.
    with serving(followed.publication.folder, tmp_path / "next", "--workers", "1") as server:
        answer = json.loads(server.ask("POST", INFER, BODY).body)
        assert (answer["model_version"], answer["outputs"][0]["data"]) == ("3", followed.offline["3"])
        assert metric(server, "persia_serving_refused_versions_total") == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_random_kills_of_a_follower_fail_no_request(tmp_path: Path) -> None:
    """No delta is lost or applied twice: each answer is that of the version which it names, up to the last one."""
    followed, draw = Followed(tmp_path), random.Random(9)
    folder = followed.publication.folder
    with (
        serving(folder, tmp_path / "server", "--workers", "1") as server,
        Clients(server, followed.offline, count=1) as clients,
    ):
        parent = psutil.Process(server.process.pid)

        def followers() -> list[psutil.Process]:
            return [each for each in parent.children() if is_running(each.pid) and each.nice() > parent.nice()]

        for kill in range(KILLS):
            clients.wait_for(followed.publication.version)  # a follower that dies before it is ready starts later
            poll_for(followers, SOON_S, "a follower")
            [follower] = followers()
            followed.publish(base=kill % 7 == 3)
            time.sleep(draw.uniform(0, 0.5))
            follower.kill()
            poll_for(lambda follower=follower: not is_running(follower.pid), SOON_S, "the follower is dead")
        clients.wait_for(followed.publication.version)
    assert clients.failures == []
    ends = re.findall("the follower has ended and is started again: (.*);", server.log.read_text())
    assert ends == ["it was killed by SIGKILL"] * KILLS


def test_ctrl_c_ends_a_following_server_and_its_processes(tmp_path: Path) -> None:
    """A terminal sends the signal to each of them."""
    with serving(Followed(tmp_path).publication.folder, tmp_path / "server", "--workers", "1") as server:
        parent = psutil.Process(server.process.pid)
        processes = [parent, *parent.children(recursive=True)]
        for process in processes:
            process.send_signal(signal.SIGINT)
        assert server.process.wait(SOON_S) == 0
        poll_for(lambda: not any(is_running(process.pid) for process in processes), SOON_S, "all have ended")
    assert "Traceback" not in server.log.read_text()


def test_a_training_is_served_as_its_export(tmp_path: Path) -> None:
    words = [
        "conf=synthetic", "model=dcn_v2", "model.dim=4", "model.hidden=[16,8]", "dataset.generator.dense=2",
        "dataset.generator.cardinalities=[20,3000]", "dataset.generator.eval_rows=320", "embedding.capacity=1024",
        "embedding.num_partitions=16", "train.batch_size=64", "dataset.generator.train_rows=9600",
        "cluster=embedded", f"publish.to={tmp_path / 'out'}", "publish.every_s=0.2",
    ]  # fmt: skip
    train(words, tmp_path / "run")
    made = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "-o", str(tmp_path / "export")])
    assert made.exit_code == 0, made.output
    follower, versions = Follower(tmp_path / "out", tmp_path / "work", None), versions_of(tmp_path / "out")
    assert len(versions) > 1
    for number in versions:
        found = follower.prepare(number)
    served, export = Predictor.open(folder_of(tmp_path / "work", found.number)), Predictor.open(tmp_path / "export")
    assert served.description.step == export.description.step
    golden = read_golden(export.folder, export.description)
    np.testing.assert_array_equal(served.predict(golden.batch).logits, export.predict(golden.batch).logits)
