"""GPUs as data: one row a target, the activations, the flags of a combination, and which combinations are legal."""
