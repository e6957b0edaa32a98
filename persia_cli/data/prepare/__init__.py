"""From the text files of public data sets to Parquet: recipes, parts, bad rows, and what is kept after a kill."""
