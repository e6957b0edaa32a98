"""`cluster=hosts`: machines that ssh reaches, for people without a scheduler."""
