"""`persia dashboard`: a local web page over the runs and sweeps of a folder."""
