"""The content of rows: keys, formats, first values, optimizers."""
