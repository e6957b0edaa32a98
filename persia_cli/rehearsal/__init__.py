"""Questions to torch in a separate process before a job: GPUs, layers, reasons against a run, initial weights."""
