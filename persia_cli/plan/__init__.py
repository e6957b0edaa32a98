"""A checked run and the facts of its data set become a job plan; pure."""
