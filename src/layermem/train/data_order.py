"""The order of the data: one list of block numbers for a whole run, from its seed alone.

Every epoch is a permutation of its own; the run is cut from their chain, so that every step has a
whole batch, whoever computes which part of it. Two variants of one seed see the same batches.

It does not know: blocks, processes, the model.
"""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class Order(Sampler[int]):
    """Yield ``length`` block numbers out of ``n_blocks``."""

    def __init__(self, n_blocks: int, length: int, seed: int) -> None:
        self.n_blocks, self.length, self.seed = n_blocks, length, seed

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        left = self.length
        while left > 0:
            epoch = torch.randperm(self.n_blocks, generator=generator)[:left].tolist()
            yield from epoch
            left -= len(epoch)
