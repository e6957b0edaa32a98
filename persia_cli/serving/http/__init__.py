"""The server that `persia serve` runs: workers with uvicorn and one ASGI application answer for an exported model."""
