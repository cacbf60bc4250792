"""The plain decoder: attention reads the keys and values of its own layer."""

from literal import parts


def logits(model, ids):
    return parts.residual_logits(model, ids, lambda layer, query, slots: slots[-1])
