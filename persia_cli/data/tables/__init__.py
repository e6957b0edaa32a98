"""Tables of Iceberg and Delta, and data of the Hugging Face Hub, as lists of Parquet files at one snapshot."""
