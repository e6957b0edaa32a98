"""From command-line words to a checked, frozen `Run`, and back to a file."""
