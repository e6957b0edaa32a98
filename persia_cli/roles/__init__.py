"""One file per role: the loop that ties the rooms together."""
