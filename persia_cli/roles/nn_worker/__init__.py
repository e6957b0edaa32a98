"""The NN worker."""
