"""Reading from and writing to a residual stream of several states.

It does not know: where weights come from, modules.
"""

from layermem.ops.streams.naive import read, write

__all__ = ["read", "write"]
