"""From command-line arguments to a checked, frozen `Run`, and back to a file."""
