"""Weighted sums of states of different depths, whose backward computes each state's gradient once.

    mix           out_c = sum_j weights[c, j] x_j        weights constant, per channel or per token
    score         out[..., c, j] = vectors[c] . x_j      numbers for each token and state
    inverse_rms   1 / sqrt(mean(x^2) + eps) of each token of one state
    store         marks a state that several of these will read

A state is [B, T, D]. Without ``store`` the results are the same; its gradient is then accumulated
reader by reader.
"""

from layermem.ops.depth.deferred import inverse_rms, mix, score, store

__all__ = ["inverse_rms", "mix", "score", "store"]
