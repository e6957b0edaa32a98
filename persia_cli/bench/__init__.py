"""What `persia bench` runs."""
