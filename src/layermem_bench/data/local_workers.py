"""The pieces of a preparation, made by processes of this machine.

Each process makes every Nth piece. What a worker needs comes through its standard input, which it
watches afterwards: it ends when the process that started it does.
"""

import base64
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tqdm import tqdm

from layermem_bench.data.piece_writing import make_pieces
from layermem_bench.data.preparations import SPLITS, Plan, Work

logger = logging.getLogger(__name__)
# Bytes of text for which another process is worth its start, which takes some seconds.
_WORTH = 2**25
# Seconds between two looks at what is done.
_POLL = 0.2


def make_locally(work: Work, plan: Plan, tokenizer: Any, workers: int | None = None) -> bool:
    """Make the pieces that are missing, by several processes where there are cores and text."""
    missing = work.missing(plan)
    if done := len(plan.pieces) - len(missing):
        logger.info("%s: %s of %s pieces are done already", plan.source, done, len(plan.pieces))
    count = _count_workers(plan, missing) if workers is None else min(workers, len(missing))
    tokens = _count_tokens(work, plan, set(missing))
    # None: a progress bar in a terminal, nothing in a pipe.
    bar = tqdm(
        unit=" tokens",
        unit_scale=True,
        desc=f"tokenizing {plan.source}",
        disable=None,
        initial=tokens,
    )
    with bar:
        if count > 1:
            _make_by_workers(work, plan, tokenizer, missing, count, bar)
        else:
            make_pieces(work, plan, tokenizer, missing, bar.update)
    return True


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _count_workers(plan: Plan, missing: Sequence[int]) -> int:
    # The training's processes, of which one prepares, have the cores of a machine in common.
    cores = available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    text = sum(plan.pieces[index]["size"] for index in missing)
    return max(1, min(cores, len(missing), text // _WORTH))


def _count_tokens(work: Work, plan: Plan, missing: set[int]) -> int:
    done = (work.done(i, plan) for i in range(len(plan.pieces)) if i not in missing)
    return sum(each[split]["tokens"] for each in done if each for split in SPLITS)


def _make_by_workers(
    work: Work, plan: Plan, tokenizer: Any, missing: Sequence[int], count: int, bar: Any
) -> None:
    threads = str(max(1, available_cores() // count))
    package = str(Path(__file__).parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(paths)}
    processes = []
    try:
        for rank in range(count):
            process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
            )
            processes.append(process)
            task = pickle.dumps((work.final, work.owner, tokenizer, missing[rank::count]))
            assert process.stdin is not None
            process.stdin.write(base64.b64encode(task).decode() + "\n")
            process.stdin.flush()
        _wait(work, plan, missing, processes, bar)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _wait(
    work: Work,
    plan: Plan,
    missing: Sequence[int],
    processes: Sequence["subprocess.Popen[str]"],
    bar: Any,
) -> None:
    """Wait until all workers have ended; raise the error of one that failed."""
    counted = set[int]()
    running = True
    while running:
        running = any(process.poll() is None for process in processes)
        for index in missing:
            if index not in counted and (done := work.done(index, plan)):
                counted.add(index)
                bar.update(sum(done[split]["tokens"] for split in SPLITS))
        for process in processes:
            if process.poll():
                raise _error_of(process)
        if running:
            time.sleep(_POLL)


def _error_of(process: "subprocess.Popen[str]") -> Exception:
    assert process.stdout is not None
    try:
        kind, arguments = json.loads(process.stdout.read())
    except ValueError:
        return RuntimeError(
            f"a process that prepared text ended with {process.returncode} and no message (killed "
            "for want of memory?); start again to go on from there"
        )
    if kind == "OSError":
        return OSError(*arguments)
    text = " ".join(map(str, arguments))
    return ValueError(text) if kind == "ValueError" else RuntimeError(f"{kind}: {text}")


def _describe(error: Exception) -> str:
    """Return an error for ``_error_of``, as JSON."""
    if isinstance(error, OSError) and error.errno:
        where = [] if error.filename is None else [str(error.filename)]
        return json.dumps(["OSError", [error.errno, error.strerror, *where]])
    kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
    return json.dumps([kind, [str(error)]])


def _end_with_parent() -> None:
    """End this process at once when its standard input ends: nobody waits for it any more."""
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Make the pieces that the standard input names."""
    # Ctrl-C is for the process that started this one, and ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    final, owner, tokenizer, indices = pickle.loads(base64.b64decode(sys.stdin.readline()))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = Work(final, owner)
    plan = work.plan()
    assert plan is not None
    try:
        make_pieces(work, plan, tokenizer, indices, lambda tokens: None)
    except Exception as error:
        with suppress(BrokenPipeError):
            sys.stdout.write(_describe(error))
            sys.stdout.flush()
        os._exit(1)
    # Without the thread that waits for input.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
