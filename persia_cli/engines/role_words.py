"""The arguments of `persia launch-role` by which an engine starts a replica on its machine."""

from persia_cli.engines.handed_over import STDIN


def role_words(
    role: str, index: int | str, coordinator: str, key_file: str = STDIN, advertise: str = "", cpus: str = ""
) -> list[str]:
    """Return the arguments, without those that find Persia itself; an engine may have its machines fill in variables.

    Others reach the replica at `advertise`, by default at the address of the route to the coordinator. Without a
    `key_file` it gets the keys by its standard input, and ends with that.
    """
    words = ["launch-role", role, "--index", str(index), "--coordinator", coordinator, "--key-file", key_file]
    words += ["--advertise", advertise] if advertise else []
    words += ["--cpus", cpus] if cpus else []
    return [*words, "--attached" if key_file == STDIN else "--supervise"]
