"""Load for a server of predictions: a server, requests for it, and a process of its own that sends them."""
