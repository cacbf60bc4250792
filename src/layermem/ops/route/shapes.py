"""Whether slots and a router's weight fit: all implementations ask before they compute."""

from collections.abc import Sequence

from torch import Tensor


def check_shapes(slots: Sequence[tuple[Tensor, Tensor]], *weights: Tensor) -> None:
    """Raise ``ValueError`` if slots differ in shape, or if a weight does not fit them."""
    if not slots:
        raise ValueError("route needs at least one slot (a pair of key and value), got none")
    shape = slots[0][0].shape
    for number, slot in enumerate(slots):
        if any(part.shape != shape for part in slot):
            raise ValueError(
                f"the keys and values of all slots must have the shape {list(shape)} of the first "
                f"key, got {[list(part.shape) for part in slot]} in slot {number}"
            )
    heads, count = shape[1], len(slots)
    for weight in weights:
        by_head = weight.ndim == 2 and weight.shape[1] == count * heads
        if not by_head and weight.shape != (1, count):
            raise ValueError(
                f"the weight for {count} slots of {heads} heads must have {count * heads} columns, "
                f"or be [1, {count}], a scalar a slot; got the shape {list(weight.shape)}"
            )
        if weight.shape != weights[0].shape:
            raise ValueError(
                "the weights of keys and of values must have one shape, got "
                f"{list(weights[0].shape)} and {list(weight.shape)}"
            )
