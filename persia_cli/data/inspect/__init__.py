"""What data files hold, found by queries of DuckDB, and the use that a training job could make of them."""
