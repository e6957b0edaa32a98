"""Load for a server of predictions: a server, requests for it, and a separate process that sends them."""
