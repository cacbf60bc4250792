"""Presets of MAD: its six tasks at the paper's settings, and short ones at tiny sizes.

The paper tries three learning rates with two weight decays and keeps the best:
``layermem study paper-mad-recall --rates 1e-4 5e-4 1e-3 --decays 0 0.1``.
"""

from layermem.config import Compute, Model, Optim, Run, Task


def _paper(kind: str, examples: int = 12_800) -> Run:
    """Two layers of width 128, batches of 128, 200 epochs; heads and mlp assumed."""
    epochs, batch_size = 200, 128
    every = max(1, 10 * examples // batch_size)
    return Run(
        max_steps=epochs * examples // batch_size,
        eval_every=every,
        log_every=10,
        save_every=every,
        model=Model(
            hidden_size=128, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8
        ),
        task=Task(name="mad", examples=examples, test=1_280, options=(f"kind={kind}",)),
        optim=Optim(lr=5e-4, batch_size=batch_size, warmup_steps=0, weight_decay=0.0),
        compute=Compute(micro_batch=batch_size),
    )


def paper_mad_recall() -> Run:
    """MAD's in-context recall: 8 keys and 8 values in 128 words."""
    return _paper("recall")


def paper_mad_noisy_recall() -> Run:
    """MAD's noisy in-context recall: a fifth of the pairs are noise."""
    return _paper("noisy-recall")


def paper_mad_fuzzy_recall() -> Run:
    """MAD's fuzzy in-context recall: keys and values of up to 3 words."""
    return _paper("fuzzy-recall")


def paper_mad_copying() -> Run:
    """MAD's selective copying: 16 words between blanks, 256 words in all."""
    return _paper("copying")


def paper_mad_compression() -> Run:
    """MAD's compression, without its bottleneck (docs/tasks.md): 31 words by their places."""
    return _paper("compression")


def paper_mad_memorization() -> Run:
    """MAD's memorization: 127 values that stand nowhere, 256 problems."""
    return _paper("memorization", examples=256)


def _tiny(kind: str, *options: str) -> Run:
    """Two layers of width 64, 640 steps."""
    return Run(
        max_steps=640,
        eval_every=64,
        log_every=10,
        save_every=64,
        model=Model(
            hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
        ),
        task=Task(name="mad", examples=12_800, options=(f"kind={kind}", *options)),
        optim=Optim(lr=3e-3, batch_size=64, warmup_steps=50),
        compute=Compute(micro_batch=64, precision="float32"),
    )


def tiny_mad_recall() -> Run:
    """MAD's in-context recall in 32 words: minutes on one CPU core."""
    return _tiny("recall", "length=32")


def tiny_mad_noisy_recall() -> Run:
    """The same with noise: minutes on one CPU core."""
    return _tiny("noisy-recall", "length=32")


def tiny_mad_fuzzy_recall() -> Run:
    """MAD's fuzzy in-context recall, keys and values of up to 2 words, in 32 words."""
    return _tiny("fuzzy-recall", "length=32", "key_words=2", "value_words=2")


def tiny_mad_copying() -> Run:
    """MAD's selective copying of 4 words, 32 in all: minutes on one CPU core."""
    return _tiny("copying", "length=32", "copied=4")


def tiny_mad_compression() -> Run:
    """MAD's compression without its bottleneck, 15 words: minutes on one CPU core."""
    return _tiny("compression", "length=16")


def tiny_mad_memorization() -> Run:
    """MAD's memorization of 31 values: minutes on one CPU core."""
    return _tiny("memorization", "vocabulary=64", "length=16")


PRESETS = (
    *(tiny_mad_recall, tiny_mad_noisy_recall, tiny_mad_fuzzy_recall),
    *(tiny_mad_copying, tiny_mad_compression, tiny_mad_memorization),
    *(paper_mad_recall, paper_mad_noisy_recall, paper_mad_fuzzy_recall),
    *(paper_mad_copying, paper_mad_compression, paper_mad_memorization),
)
