"""The checks and measurements of `scripts/gpu_check.py` on a machine with a GPU."""
