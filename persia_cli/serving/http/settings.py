"""The settings of a server, which its workers read from their environment."""

import msgspec

from persia_cli.serving.row_reader import Missing

SETTINGS = "PERSIA_SERVE"
"""Environment variable of workers with the settings as JSON."""
SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable with the folder of the workers' files of counters, one for each."""
FAILED = "failed"
"""File in that folder: the exit code and the sentence of a worker that could not begin."""
MAX_CONNECTIONS = 900
"""Maximum number of connections of a worker. Processes may commonly have 1,024 files and connections."""
IDLE_S = 75
"""Seconds for which a connection without requests stays open."""
DRAIN_S = 10
"""Seconds in which requests are finished after SIGTERM."""
LOG_S = 5.0
"""Seconds after draining in which pending requests are logged."""


class ServerSettings(msgspec.Struct, frozen=True):
    """The settings of a server. Secrets are named by their files."""

    folder: str
    """The exported model."""
    model: str | None = None
    """Digest of its description when the server began: all workers serve the same one."""
    host: str = "127.0.0.1"
    """The address at which it listens, as given."""
    is_near: bool = True
    """True if only this machine reaches that address."""
    missing: Missing | None = None
    token_file: str | None = None
    tls: tuple[str, str] | None = None
    """Files of the certificate and its key."""
    log: str | None = None
    """Folder of the request log."""
    sample: float = 1.0
    """Fraction of requests that are logged."""
    deadline_s: float = 5.0
    """Deadline, in seconds, for the body of a request to arrive and its computation to begin."""
    most_requests: int = 64
    """Maximum number of requests in a worker: being read, waiting and being computed."""
    most_bytes: int = 2**24
    """Maximum size of a request's body."""
    most_samples: int = 10_000
    """Maximum number of samples of a request."""
