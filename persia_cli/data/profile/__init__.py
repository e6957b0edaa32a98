"""What Parquet files hold, found in one pass and in bounded memory, and what a training job would make of them."""
