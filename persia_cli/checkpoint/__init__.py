"""What `persia checkpoint` runs: checkpoints listed, described, verified, compared, exported and removed."""
