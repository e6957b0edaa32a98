"""Retrieval judged: each user's items among all items, by the vectors of a saved network of two sides."""
