"""Retrieval: each user's items among all items, by the vectors of a saved two-tower network; metrics and lists."""
