"""Dense networks, found by kind and imported lazily; they take plain values."""
