"""The search path of configurations: the user's folders first, then the built-in one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from persia_cli.shipped import shipped


class UserFolders(SearchPathPlugin):
    """A Hydra plugin that puts the user's folders before the built-in one."""

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Add the user's folders; Hydra calls this when it is initialised."""
        for folder in reversed(self.folders):
            search_path.prepend("user", f"file://{folder}")


@contextmanager
def hydra_over(folders: Sequence[Path]) -> Iterator[None]:
    """Make Hydra search these folders and then the built-in one while the context lasts."""
    Plugins.instance().register(UserFolders)
    UserFolders.folders = [folder.resolve() for folder in folders]
    try:
        with initialize_config_dir(str(shipped("conf").resolve()), job_name="persia", version_base="1.3"):
            yield
    finally:
        UserFolders.folders = ()
