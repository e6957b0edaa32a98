"""The input that an engine gives the coordinator's machine: the resolved configuration, and the keys of the job."""

from persia_cli.config.record import to_yaml
from persia_cli.config.schema import Run
from persia_cli.engines.job import anchored
from persia_cli.engines.key_files import key_file_of
from persia_cli.wire.secret import JobKeys, new_keys, read_keys


def configuration(run: Run) -> str:
    """Return the configuration, with absolute paths, as the text of a file that `conf=PATH` reads.

    Nothing in it is secret: keys are never in a run, and credentials of URIs have left it when it was read.
    """
    return to_yaml(anchored(run))


def keys_of_job() -> JobKeys:
    """Return the keys that the user names, or else new ones."""
    given = key_file_of(None, None)
    return new_keys() if given is None else read_keys(given)
