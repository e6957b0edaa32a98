"""Data of the Hugging Face Hub, which pyarrow opens: a path gets the commit that it stands for now."""

from persia_cli.data.tables.places import asked
from persia_cli.errors import DataError
from persia_cli.storage.addresses import HUB

LIBRARY = "huggingface_hub"
_FOLDERS = {"dataset": "datasets/", "space": "spaces/"}


def hub_at_present(path: str) -> str:
    """Return the path with the commit in place of a branch; raises DataError. Buckets have no commits."""
    return asked(path, LIBRARY, lambda: _at_present(path))


def _at_present(path: str) -> str:
    from huggingface_hub import HfApi, HfFileSystem

    found = HfFileSystem().resolve_path(path)
    if not hasattr(found, "repo_id"):
        return path
    commit = HfApi().repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision).sha
    if commit is None:
        raise DataError(f"dataset.path={path}: the Hub names no commit; give one, as in hf://datasets/USER/NAME@COMMIT")
    return f"{HUB}{_FOLDERS.get(found.repo_type, '')}{found.repo_id}@{commit}/{found.path_in_repo}".rstrip("/")
