"""The settings of a server, and the messages of its workers to their parent."""

from typing import NamedTuple

import msgspec

from persia_cli.serving.description import Missing

MAX_CONNECTIONS = 900
"""Maximum number of connections of a worker. Processes may commonly have 1,024 files and connections."""
IDLE_S = 75
"""Seconds for which a connection without requests stays open."""
FINISH_S = 10
"""Seconds in which a worker that is to end finishes its requests."""
LOG_S = 5.0
"""Seconds after that in which pending requests are logged."""


class ServerSettings(msgspec.Struct, frozen=True):
    """The settings of a server. Secrets are named by their files."""

    folder: str
    """The exported model; of a server that follows, the folder of prepared versions."""
    source: str | None = None
    """The published folder that the server follows; None for an exported model."""
    max_lag_s: float | None = None
    """Seconds without the current version after which `ready` is false."""
    host: str = "127.0.0.1"
    """The address at which it listens, as given."""
    is_near: bool = True
    """True if only this machine reaches that address over a network."""
    missing: Missing | None = None
    token_file: str | None = None
    tls: tuple[str, str] | None = None
    """Files of the certificate and its key."""
    log: str | None = None
    """Folder of the request log."""
    sample: float = 1.0
    """Fraction of requests that are logged."""
    log_every_s: float = 60.0
    """Seconds after which a file of the log is complete."""
    drain_s: float = 0.0
    """Seconds from SIGTERM to the end, in which requests are answered and `ready` is not."""
    most_connections: int = MAX_CONNECTIONS
    """Maximum number of connections of a worker."""
    deadline_s: float = 5.0
    """Deadline, in seconds, for the body of a request to arrive and its computation to begin."""
    most_requests: int = 64
    """Maximum number of requests in a worker: being read, waiting and being computed."""
    most_bytes: int = 2**24
    """Maximum size of a request's body."""
    most_samples: int = 10_000
    """Maximum number of samples of a request."""


class WorkerReady(NamedTuple):
    """The message of a worker that answers requests, or of a follower that has a version to serve."""

    model: str
    """Digest of the model's description; empty if the server follows, and workers take new versions themselves."""
    name: str
    """The model and its step, for people."""


class WorkerFailed(NamedTuple):
    """The message of a worker that cannot begin."""

    exit_code: int
    sentence: str
