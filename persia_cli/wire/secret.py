"""The secret of a job: what proves that a process belongs to it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from persia_cli.wire.keys import KEY_CHARACTERS, JobKeys, read_keys
from persia_cli.wire.private_file import read_private
from persia_cli.wire.token import new_token, read_token


@dataclass(frozen=True, slots=True)
class JobSecret:
    """The token of a job and, if it has keys, the pair that the token comes from."""

    token: bytes = field(repr=False)
    keys: JobKeys | None = None

    @classmethod
    def of(cls, keys: JobKeys) -> Self:
        """Return the secret of a job with these keys."""
        return cls(keys.token, keys)


def new_secret() -> JobSecret:
    """Return the secret of a job without keys."""
    return JobSecret(new_token())


def read_secret(path: Path) -> JobSecret:
    """Return the secret in a file of keys or of a token; raises UserError for others, or if other users can read it."""
    if len(read_private(path, "the job's secret")) == KEY_CHARACTERS:
        return JobSecret.of(read_keys(path))
    return JobSecret(read_token(path))
