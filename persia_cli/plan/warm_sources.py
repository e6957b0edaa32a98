"""The sources of `init_from`, compared with the tables of a new run."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from persia_cli.config.record import CONFIG, read_run
from persia_cli.config.schema import InitFrom, ParquetDataset, Run, VectorFile
from persia_cli.config.schema.embedding import DENSE_TABLE
from persia_cli.config.schema.init_from import DENSE, OPTIMIZER
from persia_cli.data.read.vectors import find_vectors
from persia_cli.errors import ConfigError, DataError
from persia_cli.plan.capacity import require_capacity
from persia_cli.plan.columns import sparse_features
from persia_cli.plan.embedding import embedding_layout
from persia_cli.plan.warm_start import TakenTable, TakenVectors, WarmStart
from persia_cli.storage.addresses import local_path
from persia_cli.storage.locations import Location, address_of, location_of
from persia_cli.store.checkpoints.manifest import MANIFEST, Manifest, SavedTable, checkpoints_of, read_manifest
from persia_cli.store.checkpoints.retention import choose_checkpoint
from persia_cli.store.layout import EmbeddingLayout, GroupSpec, TableSpec


def plan_warm_start(run: Run, layout: EmbeddingLayout) -> WarmStart | None:
    """Return the initial values of the run; None without `init_from`.

    Read the manifest of the checkpoint and the footers of Parquet files. Raise ConfigError, DataError or
    CheckpointError with one line for each difference because of which something cannot be taken.
    """
    source = run.init_from
    if source is None:
        return None
    wrong = list(_unknown_tables(source, layout))
    checkpoint = _checkpoint_of(source.path) if source.path is not None else None
    manifest = read_manifest(checkpoint) if checkpoint else None
    pairs = _pairs(source, manifest, layout, wrong) if manifest else {}
    saved = _saved_run(manifest) if manifest else None
    for new, old in pairs.items():
        wrong += _differences(run, saved, layout, old, new, named=old.name in source.tables)
    vectors = [_vectors(run, layout, name, file, wrong) for name, file in source.vectors.items()]
    wrong += [
        f"embedding.tables.{table.name}.trainable=false: init_from gives this table no rows; name a table for it"
        for table, group in _tables(layout).values()
        if group.is_frozen and table.name not in pairs and table.name not in source.vectors
    ]
    if wrong:
        raise ConfigError("\n".join(wrong))
    start = WarmStart(
        checkpoint=address_of(checkpoint) if checkpoint else None,
        step=manifest.step if manifest else 0,
        tables=tuple(
            TakenTable(
                new,
                old.name,
                old.rows,
                OPTIMIZER not in source.skip and _keeps_states(saved, layout, old, new),
                _tables(layout)[new][1].is_frozen,
            )
            for new, old in pairs.items()
        ),
        vectors=tuple(file for file in vectors if file is not None),
        new=tuple(name for name in _tables(layout) if name not in pairs and name not in source.vectors),
        unused=_unused(manifest, pairs) if manifest else (),
        dense=manifest is not None and DENSE not in source.skip,
        states=manifest is not None and OPTIMIZER not in source.skip,
        notes=(*_notes(saved, layout, pairs, source), *_notes_of_statistics(saved, run, source)) if saved else (),
    )
    if not start.tables and not start.vectors and not start.dense:
        raise ConfigError(
            f"init_from takes nothing from {source.path}: it has the tables "
            f"{', '.join(start.unused) or 'of dense weights alone'}, this run {', '.join(start.new) or 'none'}; name "
            "them in init_from.tables, or leave init_from out"
        )
    require_capacity((*start.tables, *start.vectors), layout, run.cluster.embedding_servers, "init_from")
    return start


def _tables(layout: EmbeddingLayout) -> dict[str, tuple[TableSpec, GroupSpec]]:
    """Return the tables that features read, by name."""
    return {table.name: (table, group) for group in layout.feature_groups for table in group.tables}


def _checkpoint_of(path: str) -> Location:
    """Return the folder of the initial checkpoint."""
    folder = location_of(path)
    try:
        is_file, has_model = folder.is_file(), (folder / MANIFEST).is_file()
        is_run = isinstance(folder, Path) and (folder / CONFIG).is_file()
    except (OSError, ValueError) as error:
        raise ConfigError(f"init_from.path={path} cannot be read: {error}") from error
    if is_file:
        raise ConfigError(
            f"init_from.path={path} is a file, and not the folder of a run or a checkpoint; vectors are given as "
            f"init_from.vectors.TABLE={path}"
        )
    if not has_model and not is_run:
        raise ConfigError(f"init_from.path={path} is neither a run directory nor a checkpoint; correct it")
    if has_model or not isinstance(folder, Path):
        return folder
    return choose_checkpoint(checkpoints_of(folder, read_run(folder / CONFIG).checkpoint.path))


def _saved_run(manifest: Manifest) -> Run | None:
    """Return the run that saved a checkpoint; None if it is of another version of persia."""
    try:
        return Run.model_validate(manifest.config)
    except ValidationError:
        return None


def _unknown_tables(source: InitFrom, layout: EmbeddingLayout) -> Iterator[str]:
    """Yield a sentence for each name in `init_from` that no table of the run has."""
    known = _tables(layout)
    there = f"the tables are {', '.join(known)}" if known else "it has no tables"
    for key, names in (
        ("tables", [new for targets in source.targets().values() for new in targets]),
        ("skip", [name for name in source.skip if name not in (DENSE, OPTIMIZER)]),
        ("vectors", list(source.vectors)),
    ):
        for name in names:
            if name not in known:
                yield f"init_from.{key}: this run has no table {name}; {there}"
    for word in (DENSE, OPTIMIZER):
        if word in source.skip and word in known:
            yield (
                f"init_from.skip: {word} may mean the table {word} or not; give the table another name "
                "(dataset.sparse: table)"
            )


def _pairs(source: InitFrom, manifest: Manifest, layout: EmbeddingLayout, wrong: list[str]) -> dict[str, SavedTable]:
    """Return the saved table of each table that takes rows of one."""
    saved = {table.name: table for table in manifest.tables if table.name != DENSE_TABLE}
    there = ", ".join(saved) or "none"
    pairs: dict[str, SavedTable] = {}
    for old, targets in source.targets().items():
        if old not in saved:
            wrong.append(f"init_from.tables.{old}: {source.path} has no table {old}; its tables are {there}")
            continue
        pairs |= dict.fromkeys(targets, saved[old])
    for name, table in saved.items():
        if name not in source.tables and name not in source.skip and name not in source.vectors:
            pairs.setdefault(name, table)
    known = _tables(layout)
    return {name: pairs[name] for name in known if name in pairs}


def _differences(
    run: Run, saved: Run | None, layout: EmbeddingLayout, old: SavedTable, new: str, named: bool
) -> Iterator[str]:
    """Yield a sentence for each reason why a table cannot take the rows of another."""
    table, group = _tables(layout)[new]
    what = f"table {new}" if old.name == new else f"table {new} (from {old.name})"
    remedy = f"take {old.name} out of init_from.tables" if named else f"add {new} to init_from.skip"
    if old.dim != group.dim:
        yield f"{what} has dim {group.dim}, and was saved with dim {old.dim}; {remedy}"
    if saved is None:
        return
    stack = saved.embedding.tables[old.name].hash_stack if old.name in saved.embedding.tables else None
    before = (stack.rounds, stack.size) if stack else (0, 0)
    if before != (table.rounds, table.size):
        yield f"{what} has {_stack(table.rounds, table.size)}, and was saved with {_stack(*before)}; {remedy}"
    had, has = _sources_of_ids(saved, old.name), _sources_of_ids(run, new)
    if had != has:
        yield f"{what} has ids from {_any_of(has)}, and was saved with ids from {_any_of(had)}; {remedy}"
    elif old.name != new and "text" in has:
        yield (
            f"{what}: ids of text depend on the name of their table, so none of the rows would be found; keep the name "
            f"(dataset.sparse: table: {old.name}), or {remedy}"
        )


def _stack(rounds: int, size: int) -> str:
    return f"a hash_stack of {rounds} x {size} rows" if rounds else "no hash_stack"


def _any_of(sources: frozenset[str]) -> str:
    return " and ".join(sorted(sources)) or "nothing"


def _sources_of_ids(run: Run, table: str) -> frozenset[str]:
    """Return a description of the sources of a table's ids."""
    sources = set()
    for feature in sparse_features(run):
        if feature.table_name == table:
            buckets = feature.buckets if isinstance(feature.buckets, tuple) else ()
            bounds = f"buckets at {', '.join(f'{bound:g}' for bound in buckets)}"
            kinds = {"text": "text", "time": f"the {feature.transform or 'microsecond'} of times"}
            sources.add(bounds if feature.buckets is not None else kinds.get(feature.ids or "", "numbers"))
    return frozenset(sources)


def _keeps_states(saved: Run | None, layout: EmbeddingLayout, old: SavedTable, new: str) -> bool:
    """Return True if the optimizer of a table has the states that its rows were saved with."""
    if saved is None:
        return False
    group = _tables(layout)[new][1]
    before = next(group for group in embedding_layout(saved).groups if group.number == old.group)
    return before.optimizer.states(old.dim) == group.optimizer.states(group.dim)


def _vectors(run: Run, layout: EmbeddingLayout, name: str, file: VectorFile, wrong: list[str]) -> TakenVectors | None:
    known = _tables(layout)
    if name not in known:
        return None
    table, group = known[name]
    if table.rounds:
        wrong.append(f"init_from.vectors.{name}: the rows of a hash_stack belong to no ids; take it out")
        return None
    path = file.path if "://" in file.path else str(local_path(file.path).absolute())
    try:
        columns = find_vectors(path, file.id, file.vector, group.dim, f"init_from.vectors.{name}")
    except DataError as error:
        wrong.append(str(error))
        return None
    sources = {feature.ids for feature in sparse_features(run) if feature.table_name == name}
    source_of_ids = file.ids or (sources.pop() if len(sources) == 1 else None)
    if source_of_ids == "text" and file.ids is None and not columns.has_text:
        wrong.append(
            f"init_from.vectors.{name}={file.path}: ids of table {name} are hashes of text, and column "
            f"{columns.id} holds no text; give init_from.vectors.{name}.ids=integer if it holds the hashes, as persia "
            "checkpoint export writes them, or ids=text to hash what it holds"
        )
    return TakenVectors(name, path, columns.files, columns.id, columns.vector, columns.rows, source_of_ids)


def _unused(manifest: Manifest, pairs: dict[str, SavedTable]) -> tuple[str, ...]:
    taken = {old.name for old in pairs.values()}
    return tuple(table.name for table in manifest.tables if table.name not in taken and table.name != DENSE_TABLE)


def _notes(saved: Run, layout: EmbeddingLayout, pairs: dict[str, SavedTable], source: InitFrom) -> Iterator[str]:
    """Yield a sentence if weights of the first layers would be taken for other features than they were trained with."""
    if DENSE in source.skip:
        return
    tables = {table.number: table.name for table in layout.tables()}
    now = [tables[feature.table] for feature in layout.features]
    old = {new: table.name for new, table in pairs.items()}
    before = [feature.table_name for feature in sparse_features(saved)]
    if len(now) == len(before):
        for position, (name, had) in enumerate(zip(now, before, strict=True)):
            if old.get(name, name) != had:
                yield (
                    f"sparse feature {position} of the network reads table {name}, where the saved one read {had}; "
                    "unless the weights of its first layers should be used for other features, add dense to "
                    "init_from.skip"
                )
                return


def _notes_of_statistics(saved: Run, run: Run, source: InitFrom) -> Iterator[str]:
    """Yield a sentence for each column of numbers that is transformed by other statistics than in the saved run."""
    if (
        DENSE in source.skip
        or not isinstance(saved.dataset, ParquetDataset)
        or not isinstance(run.dataset, ParquetDataset)
    ):
        return
    before = {dense.name: dense for dense in saved.dataset.dense_features}
    for dense in run.dataset.dense_features:
        name, old = dense.name, before.get(dense.name)
        if old and old != dense and (dense.transform or old.transform):
            yield (
                f"dense feature {name} is transformed by statistics of this run's training rows, but the saved "
                f"model's weights need those of its own rows: take its entry in dataset.dense from the saved run's "
                f"{CONFIG}, or add dense to init_from.skip"
            )
