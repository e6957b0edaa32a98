"""The NN worker's step: losses, optimizers, distributed training, saved dense weights."""
