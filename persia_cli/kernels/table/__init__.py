"""Kernels of a server's table: index, rows, journal, rows on disks."""
