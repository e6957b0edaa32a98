"""`persia doctor`: facts about this machine that matter for training, each with what to do."""
