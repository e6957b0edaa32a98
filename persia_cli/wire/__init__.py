"""Bytes between processes: messages, frames, sockets, requests with deadlines; no torch, no numba."""
