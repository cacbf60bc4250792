"""Value embeddings: V~_l = V_l + 2 sigmoid(A_l q_l) U_l[t], one token at a time."""

import torch

from literal import parts

CASES = {"value_embeddings-ends": {"value_layers": "ends"}}


def logits(model, ids):
    last = model.config.num_hidden_layers - 1
    ends = model.config.value_layers == "ends"

    def read(layer, query, slots):
        key, value = slots[-1]
        index = len(slots) - 1
        if not (index in (0, last) if ends else index % 2 == last % 2):
            return key, value
        memory, mixed = layer.self_attn.memory, value.clone()
        for b in range(len(ids)):
            for t, token in enumerate(ids[b]):
                gate = 2 * torch.sigmoid(memory.gate @ query[b, :, t].flatten())
                of_token = memory.table[token].view(value.shape[1], -1)
                mixed[b, :, t] += gate[:, None] * of_token
        return key, mixed

    return parts.residual_logits(model, ids, read)
