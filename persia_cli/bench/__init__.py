"""The benchmarks of `persia bench`."""
