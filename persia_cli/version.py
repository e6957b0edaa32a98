"""The version of Persia, which every process of a job, every checkpoint and every run names."""

__version__ = "0.1.0"
