"""Checkpoints: files of rows, manifest, chain and retention."""
