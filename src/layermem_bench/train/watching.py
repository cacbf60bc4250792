"""A watchdog of several processes: it says which one hangs, and in what.

Each process tells the store that their group was formed with where it is: in which step, and what
it does there. Where that has not changed for a quarter of the group's time-out, the first process
that still answers logs which ones are behind, and once more after each such time. The time-out then
ends the run; its own error names no process.
"""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from torch import distributed
from transformers import TrainerCallback

from layermem_bench.train.processes import is_distributed

logger = logging.getLogger(__name__)
READS, COMPUTES, UPDATES, VALIDATES, SAVES = (
    "reads its batch",
    "computes gradients",
    "updates weights",
    "validates",
    "saves a checkpoint",
)
"""What a process does, in the order of a step."""
_ORDER = (READS, COMPUTES, UPDATES, VALIDATES, SAVES)
_KEY = "layermem/where"
# Processes that a message names, at most.
_NAMED = 8
BEAT = 5.0
"""Seconds between two signs of life, at most."""


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What a process last said of itself."""

    process: int
    host: str
    step: int
    """Steps that it has taken."""
    does: str
    since: float
    """Seconds for which it has done that."""
    silent: float = 0.0
    """Seconds since it said so."""

    @property
    def place(self) -> tuple[int, int]:
        """How far it is."""
        return self.step, _ORDER.index(self.does)

    def __str__(self) -> str:
        where = f"process {self.process} on {self.host} {self.does} (step {self.step + 1:,})"
        if self.silent > 2 * BEAT:
            return f"{where}, without a sign of life for {self.silent:.0f} s"
        return f"{where}, for {self.since:.0f} s"


def describe(signs: list[Sign]) -> str:
    """Return which processes are behind the others."""
    first = min(sign.place for sign in signs)
    behind = [sign for sign in signs if sign.place == first]
    silent = [sign for sign in signs if sign.silent > 2 * BEAT]
    named = silent or behind
    text = "; ".join(map(str, named[:_NAMED])) + "; and more" * (len(named) > _NAMED)
    if len(named) < len(signs):
        return f"training does not go on: {text}. The other processes wait"
    return f"training does not go on, and no process is behind: {text}"


@final
class Watchdog(TrainerCallback):
    """Tells where this process is, from a thread, and logs where the others are if they hang."""

    def __init__(self, timeout: float) -> None:
        self.limit = timeout / 4
        self._step, self._does, self._begun = 0, READS, time.monotonic()
        # Own signs; of each process the last one, and when it came; when something was said.
        self._beat = 0
        self._heard: dict[int, tuple[int, float]] = {}
        self._reported = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.now(READS, state.global_step)
        if self._thread is None and is_distributed() and distributed.get_world_size() > 1:
            # torch has no public function that returns the store.
            store: Any = distributed.distributed_c10d._get_default_store()
            # Of its own: a wait in the other one would hold it.
            self._thread = threading.Thread(target=self._watch, args=(store.clone(),), daemon=True)
            self._thread.start()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.now(UPDATES, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.now(READS, state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.now(READS, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.now(READS, state.global_step)

    def over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return batches; a process that has got one is no longer reading."""
        for batch in batches:
            self.now(COMPUTES, self._step)
            yield batch

    def now(self, does: str, step: int) -> None:
        """Note what this process does from now on, and after how many steps."""
        self._does, self._step, self._begun = does, step, time.monotonic()

    def close(self) -> None:
        """End the thread; the group may be gone after this."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * BEAT)

    def _watch(self, store: Any) -> None:
        rank, count = distributed.get_rank(), distributed.get_world_size()
        while not self._stop.wait(min(BEAT, self.limit / 4)):
            try:
                found = self.look(store, rank, count)
            except (RuntimeError, ValueError):
                # The group has ended, in this process or in that which keeps the store.
                return
            if found:
                logger.warning(found)

    def look(self, store: Any, rank: int, count: int) -> str | None:
        """Tell the store where this process is; return what is to be said of all, if anything."""
        now = time.monotonic()
        self._beat += 1
        mine = [self._beat, socket.gethostname(), self._step, self._does, now - self._begun]
        store.set(f"{_KEY}/{rank}", json.dumps(mine))
        signs = [self._read(store, process) for process in range(count)]
        known = [sign for sign in signs if sign is not None]
        if any(max(sign.since, sign.silent) <= self.limit for sign in known):
            return None
        if rank != min(sign.process for sign in known if sign.silent <= self.limit):
            return None
        if now - self._reported <= self.limit:
            return None
        self._reported = now
        return describe(known)

    def _read(self, store: Any, process: int) -> Sign | None:
        """Return the sign of a process, or None where it has not given one yet."""
        key = f"{_KEY}/{process}"
        if not store.check([key]):
            return None
        beat, host, step, does, since = json.loads(store.get(key))
        if self._heard.get(process, (0, 0.0))[0] != beat:
            self._heard[process] = beat, time.monotonic()
        silent = time.monotonic() - self._heard[process][1]
        return Sign(process=process, host=host, step=step, does=does, since=since, silent=silent)
