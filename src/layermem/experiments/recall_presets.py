"""Presets of the tasks with queries inside the sequence: recall and chains of assignments.

Scales are as in ``presets``, which gives these functions their names.

It does not know: names of presets, files, the command line.
"""

from layermem.config import Compute, Model, Optim, Run, Task


def _mqar(
    model: Model, examples: int, epochs: int, batch_size: int, options: tuple[str, ...]
) -> Run:
    steps = epochs * examples // batch_size
    every = max(1, steps // 10)
    return Run(
        max_steps=steps,
        eval_every=every,
        log_every=10,
        save_every=every,
        model=model,
        # As many test problems as the paper's code draws.
        task=Task(name="mqar", examples=examples, test=3_000, options=options),
        optim=Optim(batch_size=batch_size),
        compute=Compute(micro_batch=batch_size),
    )


def tiny_mqar() -> Run:
    """Recall of 4 pairs in 32 words of 128, 2 layers of width 64: minutes on one CPU core."""
    model = Model(hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2)
    return _mqar(model, 20_000, 6, 64, ("vocabulary=128", "pairs=4", "length=32"))


def small_mqar() -> Run:
    """Recall of 16 pairs in 256 words of 8,192, 2 layers of width 128: minutes on a GPU."""
    model = Model(
        hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=1
    )
    return _mqar(model, 100_000, 16, 256, ("vocabulary=8192", "pairs=16", "length=256"))


def paper_mqar() -> Run:
    """Arora et al.'s: 64 pairs in 512 words of 8,192, 100,000 problems, 64 epochs.

    Its two layers have attention of one head; the mlp is the decoder's. The learning rate is one of
    --rates 1e-4 4.6e-4 2.2e-3 1e-2, as there (batch size assumed).
    """
    model = Model(
        hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=1
    )
    return _mqar(model, 100_000, 64, 256, ("vocabulary=8192", "pairs=64", "length=512"))


PRESETS = (tiny_mqar, small_mqar, paper_mqar)
