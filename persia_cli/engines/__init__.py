"""Engines: a job plan becomes processes of several machines. All they start is `persia launch-role … --supervise`."""
