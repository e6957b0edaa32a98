"""Compilation and cache of kernels, vectors of lanes, and aligned memory."""
