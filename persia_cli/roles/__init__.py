"""The roles of a job; each ties the other packages together."""
