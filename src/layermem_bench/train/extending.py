"""Going on with a run to more steps than it began with, from before its learning rates fell."""

import logging
import os
import shutil
from dataclasses import replace

from layermem_bench.config.run import STABLE, Run
from layermem_bench.config.run_identity import differences
from layermem_bench.results.run_folder import RunFolder, step_of

logger = logging.getLogger(__name__)


def extends(before: Run, now: Run) -> bool:
    """Return whether ``now`` is ``before`` with more steps, of the schedule that allows it."""
    more = now.optim.schedule == STABLE and now.max_steps > before.max_steps
    return more and not differences(replace(before, max_steps=now.max_steps), now)


def last_stable_step(run: Run) -> int:
    """Return the last step up to which a longer run has the same learning rates."""
    step = run.optim.steps_before_decay(run.max_steps)
    assert step is not None
    return step


def rewind(folder: RunFolder, before: Run, now: Run) -> None:
    """Take a run back to its newest checkpoint from before the decay; its final model stays under
    another name, with its rows and results. Raise if there is no such checkpoint."""
    stable = last_stable_step(before)
    steps = [step_of(path) for path in folder.complete_checkpoints()]
    usable = [step for step in steps if step <= stable]
    if not usable:
        raise ValueError(
            f"{folder.path} cannot go on to max_steps={now.max_steps}: it was begun with "
            f"{before.max_steps}, its learning rates fall after step {stable}, and no checkpoint "
            f"from before is left (there are {steps or 'none'}). Choose another --out"
        )
    logger.info("going on to %d steps, from step %d", now.max_steps, max(usable))
    for step in set(steps) - set(usable):
        folder.delete_checkpoint(step)
    folder.diverged.unlink(missing_ok=True)
    if folder.final.exists():
        kept = folder.path / f"final-{before.max_steps}"
        shutil.rmtree(kept, ignore_errors=True)
        os.replace(folder.final, kept)
        shutil.copy(folder.metrics, kept)
        for path in (folder.result, folder.attempts):
            if path.exists():
                os.replace(path, kept / path.name)
        logger.info("the final model of %d steps is %s now", before.max_steps, kept)
