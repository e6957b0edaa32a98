"""Sweeps: many points, each a training job, and the comparison of their settings."""
