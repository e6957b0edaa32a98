"""A process that saves a table while all of it changes, and prints the memory that this took.

`python -m tests.support.save_memory ROWS FOLDER` prints the resident bytes before the save, their peak during it, and
the size of the files, as JSON.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from persia_cli.kernels.toolchain.memory import retain_freed_memory
from persia_cli.roles.embedding_server.saving import ShardSaving
from persia_cli.store.checkpoints.manifest import EMBEDDINGS
from scripts.measure import stores

DIM, BATCH = 16, 20_000


def status(name: str) -> int:
    """Return a size of this process in bytes, such as VmRSS or VmHWM (the peak so far)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def main(rows: int, folder: Path) -> dict[str, int]:
    """Save while rows change, about a batch for each portion of rows that is taken."""
    shard = stores.filled(DIM, "adagrad", rows)
    retain_freed_memory()
    asked = stores.requests(rows, BATCH, False, 64)
    sent = stores.gradients(BATCH, DIM)

    def train(number: int) -> None:
        each = asked[number % len(asked)]
        shard.look_up(0, each.keys, each.tables, 1, True, number)
        shard.update(0, each.keys, each.tables, sent[: each.ids.size], 1, number)

    for number in range(len(asked)):
        train(number)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    bell, number = Event(), len(asked)
    with ThreadPoolExecutor(1) as writer:
        saving = ShardSaving(shard, folder / EMBEDDINGS, writer, bell.set, lambda rows: None)
        while not saving.done:
            saving.copy_next()
            if not saving.done:
                train(number)
                number += 1
            if not saving.can_copy:
                bell.wait(0.1)
                bell.clear()
        files = saving.finish()
    assert number > len(asked)
    return {"before": before, "most": status("VmHWM"), "nbytes": sum(file.nbytes for file in files)}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), Path(sys.argv[2]))))
