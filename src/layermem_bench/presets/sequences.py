"""Presets of tasks with queries inside the sequence: recall and chains of assignments.

Scales are as in ``presets``, which gives these functions their names.
"""

from typing import Any

from layermem_bench.config.run import Compute, Model, Optim, Run, Task


def sizes(width: int, layers: int, heads: int, **more: Any) -> Model:
    """Return a model whose mlp is four times as wide as its residual stream."""
    return Model(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        **more,
    )


def on_task(task: Task, model: Model, optim: Optim, steps: int, every: int, **compute: Any) -> Run:
    """Return a run on a task that validates and saves every so many steps."""
    return Run(
        max_steps=steps,
        eval_every=every,
        log_every=10,
        save_every=every,
        model=model,
        task=task,
        optim=optim,
        compute=Compute(**{"micro_batch": optim.batch_size, **compute}),
    )


def _queries(task: Task, model: Model, epochs: int, optim: Optim) -> Run:
    steps = epochs * task.sequences // optim.batch_size
    return on_task(task, model, optim, steps, max(1, steps // 10))


def _mqar(model: Model, examples: int, epochs: int, optim: Optim, options: tuple[str, ...]) -> Run:
    # As many test problems as the paper's code draws.
    task = Task(name="mqar", examples=examples, test=3_000, options=options)
    return _queries(task, model, epochs, optim)


def tiny_mqar() -> Run:
    """Recall of 8 pairs in 32 words of 64, 2 layers of width 64: a minute on one CPU core.

    3,000 problems, seen 13 times. The plain decoder finds out after some 350 steps how to recall,
    and then has every answer right; of problems seen once it had learnt nothing after 2,000.
    """
    model = sizes(64, 2, 2)
    options = ("vocabulary=64", "pairs=8", "length=32")
    return _mqar(model, 3_000, 13, Optim(lr=1e-3, batch_size=64, warmup_steps=50), options)


def small_mqar() -> Run:
    """Recall of 16 pairs in 256 words of 8,192, 2 layers of width 128: minutes on a GPU."""
    model = sizes(128, 2, 1)
    return _mqar(
        model, 100_000, 16, Optim(batch_size=256), ("vocabulary=8192", "pairs=16", "length=256")
    )


def paper_mqar() -> Run:
    """Arora et al.'s: 64 pairs in 512 words of 8,192, 100,000 problems, 64 epochs.

    Its two layers have attention of one head; the mlp is the decoder's. The learning rate is one of
    --rates 1e-4 4.6e-4 2.2e-3 1e-2, as there (batch size assumed).
    """
    model = sizes(128, 2, 1)
    return _mqar(
        model, 100_000, 64, Optim(batch_size=256), ("vocabulary=8192", "pairs=64", "length=512")
    )


def _chains(
    model: Model, examples: int, epochs: int, optim: Optim, options: tuple[str, ...]
) -> Run:
    return _queries(Task(name="chains", examples=examples, options=options), model, epochs, optim)


def tiny_chains() -> Run:
    """Three chains of 5 values handed on, 4 layers of width 64: minutes on one CPU core.

    Variables are named by the places of their statements and asked for where these end, so that a
    level is found soon and practised while the next is found. Of plain decoders those of 4 layers
    find all levels, those of 2 mostly levels 1 to 4 (docs/results/recall.md). A guess has a third
    of the answers right.
    """
    model = sizes(64, 4, 4)
    statements = ("depth=5", "chains=3", "values=9", "order=levels")
    options = (*statements, "ask=statements", "names=places")
    return _chains(model, 160_000, 1, Optim(lr=1e-3, batch_size=64, warmup_steps=50), options)


def small_chains() -> Run:
    """Two chains of 8 assignments, 8 layers of width 256: minutes on a GPU."""
    model = sizes(256, 8, 8)
    return _chains(model, 100_000, 20, Optim(batch_size=256), ("depth=8", "chains=2"))


def paper_chains() -> Run:
    """Zhang et al.'s: a chain of 12 assignments, the first 6 learned, 12 layers of width 768.

    Causal, where theirs are encoders (examples, epochs and learning rate assumed).
    """
    model = sizes(768, 12, 12)
    options = ("depth=12", "chains=1", "learned=6")
    return _chains(model, 100_000, 100, Optim(lr=5e-5, batch_size=256), options)


PRESETS = (tiny_mqar, small_mqar, paper_mqar, tiny_chains, small_chains, paper_chains)
