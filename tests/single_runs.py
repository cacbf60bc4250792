"""The runs that one process trains, and two processes as well (processes.py)."""

from small_run import UNEVEN, a_run, curve

from layermem_bench.run.training import train


def long_run(folder):
    """Documents are kept apart, so that not every sequence has as many labels."""
    isolated = {"isolate_documents": True}
    return a_run(folder, max_steps=20, eval_every=10, save_every=8, data=isolated)


def layout_run(folder):
    return a_run(folder, keep=9, model={"tie_word_embeddings": True})


def heads_run(folder, **compute):
    """Two key-value heads; two processes divide the vocabulary evenly, four do not; the seven
    blocks of validation are no full batches."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 258}
    return a_run(folder, **UNEVEN, keep=9, eval_blocks=7, model=sizes, compute=compute)


def train_alone(folder):
    """Train what two processes are compared with; return the curves in each precision."""
    curves = {}
    for precision in ("float32", "bfloat16"):
        compute = {"precision": precision, "micro_batch": 1}
        run = a_run(folder, **UNEVEN, compute=compute)
        curves[precision] = curve(train(run, folder / precision))
    train(long_run(folder), folder / "long" / "one")
    train(layout_run(folder), folder / "layouts" / "one")
    return curves
