"""Parts of `python -m scripts.first_results`."""
