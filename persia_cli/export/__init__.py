"""The export of a trained model: to a folder that serves without torch, or to plain torch."""
