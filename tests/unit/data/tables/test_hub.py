"""Data of the Hugging Face Hub: at one commit, with the samples of a folder."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.hub import REPOSITORY, FakeHub, fake_hub
from tests.support.tables import samples

SCAN = """
import json, sys
from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.data.read.scan import scan
from persia_cli.data.read.source import open_source
found = scan(ParquetDataset.model_validate(json.loads(sys.argv[1])))
source = open_source(found.settled, "train", 0)
batch = source.read(0, 0, source.rows)
source.close()
data = found.train_data
print(json.dumps([found.settled.path, data.digest, data.contents, batch.labels.tolist(), batch.dense.tolist()]))
"""


def scanned(hub: FakeHub, path: str, cache: Path) -> list[Any]:
    """Return path, digest, contents, labels and numbers of a training on the Hub, in a process that has its address."""
    keys = {"kind": "parquet", "path": path, "labels": ["clicked"], "dense": ["price"], "sparse": ["user"]}
    words = [sys.executable, "-c", SCAN, json.dumps(keys | {"split": {"kind": "every", "n": 5}})]
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(cache), "HF_HUB_OFFLINE": "0"}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found: list[Any] = json.loads(ended.stdout)
    return found


@pytest.mark.processes
def test_a_path_of_the_hub_has_the_samples_of_a_folder_at_one_commit(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra hf")
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        pq.write_table(samples(40, number), folder / f"part-{number}.parquet")
    files = {f"data/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}
    with fake_hub() as hub:
        commit = hub.commit(files)
        path, *found = scanned(hub, f"hf://datasets/{REPOSITORY}/data", tmp_path / "cache")
        assert path == f"hf://datasets/{REPOSITORY}@{commit}/data"
        _, digest, _, *values = scanned(hub, str(folder), tmp_path / "cache")
        assert [found[0], *found[2:]] == [digest, *values]
        hub.commit(files | {"data/part-0.parquet": files["data/part-1.parquet"]})
        assert scanned(hub, path, tmp_path / "cache") == [path, *found]
        _, _, contents, *_ = scanned(hub, f"hf://datasets/{REPOSITORY}/data", tmp_path / "cache")
        assert contents[1:] == found[1][1:]
        assert contents[0] != found[1][0]
