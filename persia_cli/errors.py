"""The few kinds of error a user meets, and the exit code of each."""


class PersiaError(Exception):
    """A failure worded for a person; exit code 1 means the fault is ours or the machine's."""

    exit_code = 1


class UserError(PersiaError):
    """Something the user can put right; exit code 2."""

    exit_code = 2


class ConfigError(UserError):
    """One or more mistakes in a config or an override, one line each."""


class DataError(UserError):
    """A data file that is missing, damaged or not what the config says it is."""


class CheckpointError(UserError):
    """A checkpoint that is missing, incomplete or of another model."""


class WireError(PersiaError):
    """A peer that cannot be reached, does not answer, or refuses a request."""


class RoleError(PersiaError):
    """A replica that died, is stuck or was fenced off."""
