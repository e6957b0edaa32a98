"""How kernels are compiled, cached and vectorized, and where their memory comes from."""
