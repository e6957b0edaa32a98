"""Other systems, measured beside ours; these modules may import torch."""
