"""How many versions of one code torch.compile keeps."""

from collections.abc import Iterator
from contextlib import contextmanager

VERSIONS_OF_A_MODEL = 4
"""Of the compiled code of one model: with and without gradients, another length."""


@contextmanager
def room_to_compile(codes: int) -> Iterator[None]:
    """Let one code be compiled for so many uses, such as models or layers, each as good as alone.

    Of one code torch.compile keeps eight versions, and runs what comes after them uncompiled, with
    a warning in the log: it is slow, and correct. What still does not fit is an error here.
    """
    from torch._dynamo import config

    versions = max(config.recompile_limit, VERSIONS_OF_A_MODEL * codes)
    with config.patch(
        recompile_limit=versions,
        accumulated_recompile_limit=max(config.accumulated_recompile_limit, 32 * versions),
        fail_on_recompile_limit_hit=True,
    ):
        yield
