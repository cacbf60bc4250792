"""Fixtures of studies: made-up boards, runs and steps."""

from dataclasses import replace

import pytest
from launchers import MadeUp
from recorded import SIZES

from layermem_bench.config.run import Run
from layermem_bench.studies import steps
from layermem_bench.studies.boards import board_of, study_of_variants

SECONDS = {"plain": [1.0, 2.0, 4.0], "lime": [1.1, 2.6, 5.0], "hyper_connections": [0.9, 1.8, 3.6]}
GAIN = {"plain": 0.0, "lime": 0.5, "hyper_connections": 0.0}


def loss(run):
    """Return a made-up loss: LIMe's is 0.5 lower, and all are best at a rate of 0.01."""
    noise = 0.01 * (run.seed % 7) * (-1) ** len(run.variant)
    return 1 + noise - GAIN[run.variant] + abs(run.optim.lr - 1e-2)


@pytest.fixture
def made_up(monkeypatch):
    """Have steps measured with made-up seconds; return a launcher that records runs.

    ``made_up.timed``: the arms of each measurement of steps.
    """
    launcher = MadeUp(loss)
    launcher.timed = []

    def time_interleaved(steps, *_, **__):
        launcher.timed.append(list(steps))
        return {arm: SECONDS[arm] for arm in steps}

    monkeypatch.setattr(steps, "time_interleaved", time_interleaved)
    return launcher


@pytest.fixture
def study():
    """Return a function that makes a study of boards in a made-up preset."""
    base = Run(preset="made-up", max_steps=40, model=SIZES)

    def make(*boards, variants="plain,lime,hyper_connections", seeds=3, **changes):
        rates = changes.pop("rates", (1e-3, 1e-2))
        conditions = changes.pop("conditions", ("tokens", "time", "parameters"))
        run = replace(base, **changes)
        return study_of_variants(
            [
                board_of(replace(run, preset=name), variants, rates, name=name)
                for name in boards or ("board",)
            ],
            range(seeds),
            conditions,
        )

    return make
