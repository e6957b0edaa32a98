"""Other systems, measured beside ours; may import torch."""
