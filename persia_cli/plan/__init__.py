"""The plan of a job, as pure functions of a checked run and the facts of its data set."""
