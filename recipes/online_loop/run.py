"""One command that starts the whole loop: a shop, two servers, the join, and a training that never ends by itself.

    python run.py DIR [--seconds 180] [KEY=VALUE ...]        # settings of the training, such as model=fm

All processes write their output to DIR/logs. The server `following` takes each version that the training publishes;
`frozen` stays with the model of the time before the shop opened.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
PERSIA = [sys.executable, "-m", "persia_cli"]
START_S, END_S = 240.0, 60.0
"""Deadlines in seconds: of what a process has to do before the shop opens, and of its end."""
JOINED_S = 12.0
"""Seconds after which the last requests are joined."""
T = TypeVar("T")


class Loop:
    """The processes of the loop; none of them may end before the shop closes."""

    def __init__(self, folder: Path, started: ExitStack) -> None:
        self.folder, self._started = folder, started
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str | Path) -> "subprocess.Popen[bytes]":
        """Start a process, which ends with the loop at the latest."""
        with self.log_of(name).open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._processes[name] = process
        self._started.callback(self._end, process)
        return process

    def log_of(self, name: str) -> Path:
        """Return the file with the output of a process."""
        return self.folder / "logs" / f"{name}.log"

    def wait_for(self, found: Callable[[], T | None], what: str, limit_s: float = START_S) -> T:
        """Return a result once there is one; raise SystemExit if a process ends, or after a deadline."""
        until = time.monotonic() + limit_s
        while (result := found()) is None:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise SystemExit(f"error: {name} has ended; see {self.log_of(name)}")
            if time.monotonic() > until:
                raise SystemExit(f"error: no {what} within {limit_s:g} s; see {self.folder / 'logs'}")
            time.sleep(0.2)
        return result

    def serve(self, name: str, published: Path, asked: Path) -> str:
        """Start a server of a published folder, and return its address once it answers."""
        options = ["--port", "0", "--workers", "1", "--log", str(asked), "--log-every", "1"]
        self.start(name, *PERSIA, "serve", published, *options)
        ready = re.compile(r"^serving .* at (http://[^\s,]+)", re.M)
        return self.wait_for(lambda: ready.search(self.log_of(name).read_text()), f"server {name}")[1]

    @staticmethod
    def _end(process: "subprocess.Popen[bytes]") -> None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def samples_of(published: Path) -> int:
    """Return the number of samples that the published version was trained on; 0 if there is no version."""

    def read(path: Path) -> dict[str, int]:
        return dict(json.loads(path.read_text()))

    if not (published / "current.json").is_file():
        return 0
    number = read(published / "current.json")["version"]
    [folder] = published.glob(f"*-{number:08}")
    return read(folder / "version.json")["samples"]


def main() -> None:
    """Run the loop, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new folder for all files")
    parser.add_argument("--seconds", type=float, default=180.0, help="how long the shop is open; %(default)g")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of the training")
    given = parser.parse_args()
    folder: Path = given.folder.absolute()
    if folder.exists():
        parser.error(f"{folder} exists already; name a new folder")
    for name in ("logs", "samples", "published", "events"):
        (folder / name).mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes are ended then too
    subprocess.run([sys.executable, HERE / "shop.py", folder, "history"], check=True)
    with ExitStack() as started:
        loop = Loop(folder, started)
        _run(loop, given.seconds, given.settings)
    subprocess.run([sys.executable, HERE / "report.py", folder], check=True)


def _run(loop: Loop, open_s: float, settings: list[str]) -> None:
    folder, published, frozen = loop.folder, loop.folder / "published" / "loop", loop.folder / "published" / "frozen"
    print("training   on the time before the shop opens", flush=True)
    follow = [f"conf={HERE / 'loop.yaml'}", f"dataset.path={folder / 'samples'}", f"publish.to={published}"]
    loop.start("train", *PERSIA, "train", *follow, *settings, "--run-dir", folder / "run")
    [history] = (folder / "samples").glob("*.parquet")
    rows = pq.read_metadata(history).num_rows
    loop.wait_for(lambda: samples_of(published) >= rows or None, "version of the model")
    shutil.copytree(published, frozen)
    servers = [
        loop.serve("following", published, folder / "asked"),
        loop.serve("frozen", frozen, folder / "asked-frozen"),
    ]
    loop.start("join", sys.executable, HERE / "join.py", folder)
    print(f"open       for {open_s:g} s; the servers are {' and '.join(servers)}", flush=True)
    shop = loop.start("shop", sys.executable, HERE / "shop.py", folder, "open", f"{open_s}", *servers)
    loop.wait_for(lambda: True if shop.poll() == 0 else None, "end of the shop", open_s + START_S)
    time.sleep(JOINED_S)


if __name__ == "__main__":
    main()
