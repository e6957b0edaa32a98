"""The request to a running job to save its model and go on."""

import socket
from contextlib import closing
from pathlib import Path

from persia_cli.config.record import read_run
from persia_cli.engines.job import COORDINATOR_ADDRESS, SECRET_FILE
from persia_cli.engines.resumed import newest_of
from persia_cli.errors import RoleError, UserError, WireError
from persia_cli.observe.history import CONFIG
from persia_cli.observe.journal import EVENTS, is_being_written, read_journal
from persia_cli.store.checkpoints.manifest import checkpoints_of
from persia_cli.wire.job_messages import SavedNow, SaveNow
from persia_cli.wire.loop import Loop, identity_of
from persia_cli.wire.process import this_process
from persia_cli.wire.secret import read_secret
from persia_cli.wire.sockets import Context

ANSWER_S = 30.0
"""Seconds of silence of the coordinator after which the request fails."""
RETRY_S = 0.5
POLL_S = 0.2
NAME = "command"


class SaveRequest:
    """A request to the coordinator of a run; `answer` is None until it comes."""

    def __init__(self, run_dir: Path) -> None:
        """Send the request; raises UserError if no job of the run takes it on this machine."""
        self._run_dir = run_dir
        self.answer: SavedNow | None = None
        address, secret = _coordinator_of(run_dir)
        self._context = Context(read_secret(secret), trusts_network=True)
        self._loop = Loop(self._context, NAME)
        client = self._loop.connect(address, "coordinator", identity_of(NAME, this_process()), RETRY_S, ANSWER_S)
        client.request(SaveNow(), on_reply=self._receive, waiting_for="a checkpoint")

    def _receive(self, answer: SavedNow) -> None:
        self.answer = answer

    def poll(self) -> None:
        """Wait a moment for the answer; raises UserError if the job has ended, RoleError if it is silent."""
        lives = is_being_written(self._run_dir / EVENTS)
        try:
            self._loop.poll(POLL_S)
        except WireError as error:
            raise RoleError(str(error)) from error
        if self.answer is None and not lives:
            raise _ended(self._run_dir)

    def close(self) -> None:
        """Close the connection."""
        self._loop.close()
        self._context.destroy(linger=0)


def save_now(run_dir: Path) -> str:
    """Have the job of a run save its model, and return the place of the checkpoint once it is complete.

    Raises UserError if no job of the run is running here, or if it ends or has nothing to save; RoleError if its
    coordinator does not answer.
    """
    with closing(SaveRequest(run_dir)) as request:
        while request.answer is None:
            request.poll()
        if request.answer.why:
            raise UserError(f"the run in {run_dir} saved nothing: {request.answer.why}{_kept(run_dir)}")
        return request.answer.path


def _coordinator_of(run_dir: Path) -> tuple[str, Path]:
    """Return the address of a run's coordinator, and the file with the secret of its job."""
    if not (run_dir / CONFIG).is_file():
        raise UserError(
            f"{run_dir} is not a run directory: it has no {CONFIG}; give the folder that persia train named"
        )
    if not is_being_written(run_dir / EVENTS):
        raise _ended(run_dir)
    began = [event for event in read_journal(run_dir / EVENTS) if event["event"] == "began"]
    if began and began[-1]["host"] != socket.gethostname():
        raise UserError(f"the run in {run_dir} was started on {began[-1]['host']}; run this command there")
    if read_run(run_dir / CONFIG).cluster.is_one_process:
        raise UserError(
            f"the run in {run_dir} is one process (cluster=embedded), which takes no requests; SIGTERM has it save "
            "and end"
        )
    try:
        secret = Path((run_dir / SECRET_FILE).read_text(encoding="utf-8").strip())
        return (run_dir / COORDINATOR_ADDRESS).read_text(encoding="utf-8").strip(), secret
    except FileNotFoundError:
        raise UserError(f"the run in {run_dir} has not begun to train, so there is nothing to save") from None


def _kept(run_dir: Path) -> str:
    """Return a clause about the newest checkpoint of a run."""
    newest = newest_of(checkpoints_of(run_dir, read_run(run_dir / CONFIG).checkpoint.path))
    return f"; its newest checkpoint is {newest}" if newest else ", and it has no checkpoint"


def _ended(run_dir: Path) -> UserError:
    return UserError(f"the run in {run_dir} is not running{_kept(run_dir)}")
