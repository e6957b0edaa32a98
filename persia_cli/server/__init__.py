"""What `persia serve` runs: an exported model answers over HTTP, without torch."""
