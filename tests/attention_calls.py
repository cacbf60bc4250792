"""How torch's scaled_dot_product_attention is called, in eager mode and in a compiled graph."""

from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True)
class AttentionCall:
    """What decides which kernel computes a call."""

    is_causal: bool
    has_mask: bool


def record_eager_attention(monkeypatch):
    """Return a list that grows by an AttentionCall at every call from now on."""
    calls, attention = [], functional.scaled_dot_product_attention

    def record(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
        calls.append(AttentionCall(is_causal=is_causal, has_mask=attn_mask is not None))
        return attention(query, key, value, attn_mask, dropout_p, is_causal, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", record)
    return calls


def recording_backend(calls):
    """Return a backend of torch.compile that runs a graph as it is and records its attention."""

    def record(graph, _):
        # Checkpointed layers are graphs inside the graph.
        for part in graph.modules():
            for node in getattr(getattr(part, "graph", None), "nodes", ()):
                if node.target is functional.scaled_dot_product_attention:
                    mask = node.kwargs.get("attn_mask")
                    causal = node.kwargs.get("is_causal", False)
                    calls.append(AttentionCall(is_causal=causal, has_mask=mask is not None))
        return graph

    return record


def record_compiled_attention(model):
    """Return a list that grows by the calls of every compiled graph, and the compiled model."""
    torch.compiler.reset()
    calls = []
    return calls, torch.compile(model, fullgraph=True, backend=recording_backend(calls))
