"""A shard of the embedding tables: rows with inline optimizer state, look-up, update, snapshot."""
