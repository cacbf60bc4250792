"""Presets of tasks with queries inside the sequence: recall, chains of assignments, MAD's six.

Scales are as in ``presets``, which gives these functions their names. MAD's paper tries three
learning rates with two weight decays and keeps the best:
``layermem study paper-mad-recall --rates 1e-4 5e-4 1e-3 --decays 0 0.1``.
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


def _paper_mad(kind: str, examples: int = 12_800) -> Run:
    """Two layers of width 128, batches of 128, 200 epochs; heads and mlp assumed."""
    task = Task(name="mad", examples=examples, test=1_280, options=(f"kind={kind}",))
    optim = Optim(lr=5e-4, batch_size=128, warmup_steps=0, weight_decay=0.0)
    steps, every = 200 * examples // 128, max(1, 10 * examples // 128)
    return on_task(task, sizes(128, 2, 8), optim, steps, every)


def paper_mad_recall() -> Run:
    """MAD's in-context recall: 8 keys and 8 values in 128 words."""
    return _paper_mad("recall")


def paper_mad_noisy_recall() -> Run:
    """MAD's noisy in-context recall: a fifth of the pairs are noise."""
    return _paper_mad("noisy-recall")


def paper_mad_fuzzy_recall() -> Run:
    """MAD's fuzzy in-context recall: keys and values of up to 3 words."""
    return _paper_mad("fuzzy-recall")


def paper_mad_copying() -> Run:
    """MAD's selective copying: 16 words between blanks, 256 words in all."""
    return _paper_mad("copying")


def paper_mad_compression() -> Run:
    """MAD's compression, without its bottleneck (docs/tasks.md): 31 words by their places."""
    return _paper_mad("compression")


def paper_mad_memorization() -> Run:
    """MAD's memorization: 127 values that stand nowhere, 256 problems."""
    return _paper_mad("memorization", examples=256)


def _tiny_mad(kind: str, *options: str) -> Run:
    """Two layers of width 64, 640 steps."""
    task = Task(name="mad", examples=12_800, options=(f"kind={kind}", *options))
    optim = Optim(lr=3e-3, batch_size=64, warmup_steps=50)
    return on_task(task, sizes(64, 2, 4), optim, 640, 64, precision="float32")


def tiny_mad_recall() -> Run:
    """MAD's in-context recall in 32 words: minutes on one CPU core."""
    return _tiny_mad("recall", "length=32")


def tiny_mad_noisy_recall() -> Run:
    """The same with noise: minutes on one CPU core."""
    return _tiny_mad("noisy-recall", "length=32")


def tiny_mad_fuzzy_recall() -> Run:
    """MAD's fuzzy in-context recall, keys and values of up to 2 words, in 32 words."""
    return _tiny_mad("fuzzy-recall", "length=32", "key_words=2", "value_words=2")


def tiny_mad_copying() -> Run:
    """MAD's selective copying of 4 words, 32 in all: minutes on one CPU core."""
    return _tiny_mad("copying", "length=32", "copied=4")


def tiny_mad_compression() -> Run:
    """MAD's compression without its bottleneck, 15 words: minutes on one CPU core."""
    return _tiny_mad("compression", "length=16")


def tiny_mad_memorization() -> Run:
    """MAD's memorization of 31 values: minutes on one CPU core."""
    return _tiny_mad("memorization", "vocabulary=64", "length=16")


PRESETS = (
    *(tiny_mqar, small_mqar, paper_mqar, tiny_chains, small_chains, paper_chains),
    *(tiny_mad_recall, tiny_mad_noisy_recall, tiny_mad_fuzzy_recall),
    *(tiny_mad_copying, tiny_mad_compression, tiny_mad_memorization),
    *(paper_mad_recall, paper_mad_noisy_recall, paper_mad_fuzzy_recall),
    *(paper_mad_copying, paper_mad_compression, paper_mad_memorization),
)
