"""Processes of a run that wait for each other, however long that takes.

A collective ends with an error once somebody is later than the group's time-out; but text may be
prepared for hours on one machine and be there already on another. What is counted here lies in the
store that the group was formed with, and who waits looks there every second.

It does not know: what is waited for.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import distributed

_ENDED, _FAILED = "layermem/ended", "layermem/failed"


@contextmanager
def together() -> Iterator[None]:
    """Keep every process from going on before all have ended the block; one that fails ends all."""
    if not (distributed.is_available() and distributed.is_initialized()):
        yield
        return
    # torch has no public name for it.
    store = distributed.distributed_c10d._get_default_store()
    try:
        yield
    except BaseException:
        store.add(_FAILED, 1)
        raise
    processes = distributed.get_world_size()
    ended = store.add(_ENDED, 1)
    # The block may come several times: nobody begins a round before all have ended the last.
    wanted, pause = -(-ended // processes) * processes, 0.02
    while ended < wanted:
        if store.add(_FAILED, 0):
            raise RuntimeError(
                "another process of this run failed before the first step; its own output says why"
            )
        time.sleep(pause := min(2 * pause, 1.0))
        ended = store.add(_ENDED, 0)
