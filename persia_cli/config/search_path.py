"""Where configurations are looked for: the user's folders first, then the built-in one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from persia_cli.share import shared


class UserFolders(SearchPathPlugin):
    """Puts the user's folders before the built-in one."""

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra when it is initialised."""
        for folder in reversed(self.folders):
            search_path.prepend("user", f"file://{folder}")


@contextmanager
def hydra_over(folders: Sequence[Path]) -> Iterator[None]:
    """Have Hydra search these folders and then the built-in one, for as long as the context lasts."""
    Plugins.instance().register(UserFolders)
    UserFolders.folders = [folder.resolve() for folder in folders]
    try:
        with initialize_config_dir(str(shared("conf").resolve()), job_name="persia", version_base="1.3"):
            yield
    finally:
        UserFolders.folders = ()
