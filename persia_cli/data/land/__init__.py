"""Messages of a Kafka topic as Parquet files, each message in exactly one file."""
