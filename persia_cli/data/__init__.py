"""From Parquet files or a generator to batches, in an order that is a pure function of the seed."""
