"""Persia: hybrid training of huge recommender models on ordinary machines."""

__version__ = "0.1.0"
