"""Dense networks, found by kind and imported when they are needed; they take plain values."""
