"""Trackers of experiments that get the lines of `metrics.jsonl`, from one process next to the coordinator."""
