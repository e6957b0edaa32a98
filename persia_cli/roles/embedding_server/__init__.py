"""The embedding server."""
