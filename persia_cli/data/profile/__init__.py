"""A profile of Parquet files, made in one pass and in bounded memory, and the use a training job could make of them."""
