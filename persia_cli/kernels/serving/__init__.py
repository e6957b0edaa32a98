"""Kernels that read an exported model."""
