"""Files of tables that a job cannot write to while a test blocks them, so that it can reach any moment of a save."""

from pathlib import Path

PATCH = """
import os, time
from persia_cli.storage.hashed_files import HashingFile

write = HashingFile.write

def wait_and_write(file, data):
    deadline = time.monotonic() + 120
    while os.path.exists({gate!r}) and time.monotonic() < deadline:
        open({waiting!r}, "a").close()
        time.sleep(0.02)
    return write(file, data)

HashingFile.write = wait_and_write
"""


class HeldFiles:
    """A switch for the writes of rows by embedding servers of a job, started with this `environment`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._gate, self._waiting = folder / "gate", folder / "waiting"
        patch = PATCH.format(gate=str(self._gate), waiting=str(self._waiting))
        (folder / "sitecustomize.py").write_text(patch)  # Python imports this at the start of each process
        self.environment = {"PYTHONPATH": str(folder)}

    def hold(self) -> None:
        self._waiting.unlink(missing_ok=True)
        self._gate.touch()

    def let_go(self) -> None:
        self._gate.unlink()

    @property
    def is_waited_for(self) -> bool:
        """Return True if a server has tried to write since the files were blocked."""
        return self._waiting.exists()
