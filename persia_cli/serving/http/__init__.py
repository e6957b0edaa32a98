"""The server that `persia serve` runs: one ASGI application on uvicorn answers for an exported model."""
