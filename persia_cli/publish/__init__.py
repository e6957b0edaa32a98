"""Publishing a model that is being trained: versions in a folder that servers follow."""
