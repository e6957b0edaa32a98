"""The place of samples in files, on which their order depends as on seed, epoch and block; and the files' contents."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from posixpath import commonpath, dirname, relpath

from persia_cli.config.schema.dataset import ParquetDataset
from persia_cli.config.schema.split import EverySplit, HashSplit
from persia_cli.control.position import MADE_UP, TrainingData
from persia_cli.data.read.order import block_size
from persia_cli.data.read.row_groups import RowGroup
from persia_cli.data.read.splits import SplitRows


def training_data(
    dataset: ParquetDataset, groups: Sequence[RowGroup], split_rows: SplitRows, contents: Mapping[str, str]
) -> TrainingData:
    """Return where the samples lie, given the rows of each split in each row group and the checksum of each file.

    Nothing else of the files is in it: a folder may be elsewhere, text may be converted again, and files without
    samples may come and go.
    """
    train_rows = split_rows.train
    by_number = isinstance(dataset.split, EverySplit | HashSplit) and not dataset.split.columns
    held: dict[str, tuple[int, list[int]]] = {}
    for group, rows in zip(groups, train_rows, strict=True):
        if rows:
            # Where the number of a row decides, its split depends on the place of its file among all rows.
            first = group.first_row - group.start if by_number else 0
            name = "/" + (group.source or group.path).lstrip("/")  # stores begin with the bucket
            held.setdefault(name, (first, []))[1].append(rows)
    if not held:
        return MADE_UP
    folder = commonpath([dirname(name) for name in held])
    order = [
        # Without shuffle the rows of a file come one after the other, in whatever groups they are.
        (relpath(name, folder), first, rows if dataset.shuffle else [sum(rows)])
        for name, (first, rows) in held.items()
    ]
    size = block_size(dataset, groups, train_rows) if dataset.shuffle else None
    digest = sha256(repr((order, size)).encode()).hexdigest()
    row_groups = sum(len(rows) for _, rows in held.values()) if dataset.shuffle else 0
    return TrainingData(len(held), row_groups, digest, tuple(contents[path] for path in sampled(groups, split_rows)))


def sampled(groups: Sequence[RowGroup], split_rows: SplitRows) -> list[str]:
    """Return the paths of the files with samples to train or evaluate on, in the order of files."""
    rows = zip(groups, split_rows.train, split_rows.eval, strict=True)
    return list(dict.fromkeys(group.source or group.path for group, *own in rows if any(own)))
