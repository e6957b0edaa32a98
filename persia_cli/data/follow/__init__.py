"""Data that grows: planners find the files that are new, and portions of them are read as any data set."""
