"""The memory of a layer whose heads each attend to what one head of some other layer does.

Letters: B batch, T tokens, E head width.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from layermem.models.seams import Memory, Part
from layermem.ops.lent_attention import attend_by_head
from layermem.ops.route import Slot

# Numbers of a lender's keys, of all sequences, up to which a copy of what the heads read is faster
# than a call for each head.
COPIED = 1 << 17


def lenders_of_heads(heads: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the layers that heads read, ascending."""
    return tuple(sorted({layer for head in heads for layer in head[::2]}))


@final
class LentHeads(Memory):
    """Of each head the keys of one head and the values of one head of what layers lend."""

    reads_all_heads = True

    def __init__(self, heads: Sequence[Sequence[int]], num_heads: int) -> None:
        """``heads``: of each of its own the layer of keys, head, layer of values and head."""
        super().__init__()
        self.lenders, self.num_heads = lenders_of_heads(heads), num_heads
        # For each head (place among the lenders, head) of its keys and of its values.
        self.places = tuple(
            tuple((self.lenders.index(j), g) for j, g in zip(head[::2], head[1::2], strict=True))
            for head in heads
        )

    def _heads(self, slots: Sequence[Slot]) -> list[Slot]:
        """Return views [B, T, E] of the key and value of each head."""
        return [(slots[j][0][:, g], slots[i][1][:, h]) for (j, g), (i, h) in self.places]

    def forward(self, query: Tensor, slots: Sequence[Slot]) -> Slot:
        keys, values = zip(*self._heads(slots), strict=True)
        return torch.stack(keys, 1), torch.stack(values, 1)

    def attend(
        self, query: Tensor, slots: Sequence[Slot], mask: Tensor | None, scaling: float
    ) -> Tensor | None:
        if slots[0][0].numel() <= COPIED:
            return None
        return attend_by_head(query, self._heads(slots), mask, scaling)

    def static_weights_by_part(self) -> dict[Part, tuple[tuple[int, ...], Tensor]]:
        weights = torch.zeros(2, len(self.places), len(self.lenders), self.num_heads)
        for r, parts in enumerate(self.places):
            for part, (j, g) in enumerate(parts):
                weights[part, r, j, g] = 1
        return {"key": (self.lenders, weights[0]), "value": (self.lenders, weights[1])}

    def extra_repr(self) -> str:
        return f"lenders={list(self.lenders)}"
