"""The contents of data files, found by queries of DuckDB, and the use that a training job could make of them."""
