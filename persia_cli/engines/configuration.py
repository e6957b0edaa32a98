"""What an engine hands to the coordinator's machine: the resolved configuration, and the keys of the job."""

from persia_cli.config.record import to_yaml
from persia_cli.config.schema import Run
from persia_cli.engines.job import anchored
from persia_cli.engines.key_files import key_file_of
from persia_cli.wire.secret import JobKeys, new_keys, read_keys


def handed_over_run(run: Run) -> Run:
    """Return the run as another machine can compose it: with absolute paths, and without the user's file of keys.

    Nothing in it is secret: keys are never in a run, and credentials of URIs have left it when it was read.
    """
    run = anchored(run)
    return run.model_copy(update={"cluster": run.cluster.model_copy(update={"key_file": None})})


def configuration(run: Run) -> str:
    """Return the configuration as the text of a file that `conf=PATH` reads."""
    return to_yaml(handed_over_run(run))


def keys_of(run: Run) -> JobKeys:
    """Return the keys that the user names, or else new ones."""
    given = key_file_of(None, None, run.cluster.key_file)
    return new_keys() if given is None else read_keys(given)
