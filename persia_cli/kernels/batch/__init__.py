"""Kernels of a batch: unique keys, bags and sums, texts, scores."""
