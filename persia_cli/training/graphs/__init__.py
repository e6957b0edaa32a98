"""Training steps as CUDA graphs. `training` is the door of this package: it decides, checks and runs them."""
