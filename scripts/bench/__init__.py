"""Measurements of the parts of Persia, outside the package."""
