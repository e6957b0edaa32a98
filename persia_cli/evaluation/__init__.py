"""Work on a saved model in this process, without servers."""
