"""The order of the training data: the index of every sequence of a run, drawn from its seed.

Each epoch is a permutation of its own. The run takes its sequences from the chain of these
permutations, so that every step has a full batch, and the order is the same for any number of
processes and any micro-batch. Two variants with one seed see the same batches.

torch's ``RandomSampler`` with ``num_samples`` draws the same permutations, but its generator keeps
its state: a second pass over it has another order. accelerate also treats that class in a way of
its own (it replaces it or synchronizes its generator). Here every pass starts from the seed.

It does not know: what a sequence holds, processes, the model.
"""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler


class DataOrder(Sampler[int]):
    """Yield ``length`` indices of a dataset of ``dataset_size`` sequences."""

    def __init__(self, dataset_size: int, length: int, seed: int) -> None:
        self.dataset_size, self.length, self.seed = dataset_size, length, seed

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        remaining = self.length
        while remaining > 0:
            epoch = torch.randperm(self.dataset_size, generator=generator)[:remaining].tolist()
            yield from epoch
            remaining -= len(epoch)
