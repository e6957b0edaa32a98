"""Baselines for comparison with Persia; these modules may import torch."""
