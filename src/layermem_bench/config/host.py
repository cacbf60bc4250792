"""``Host``: the part of a run's config that names a model of transformers to go on training."""

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from layermem_base.number_ranges import at_least, check_numbers, number

VARIANT = "host"
"""What stands for the variant of a run that trains a model of transformers."""
# Fields that a run of a model of transformers leaves at their defaults, by part; none named: all.
_OF_OURS: dict[str, tuple[str, ...]] = {
    "model": (),
    "data": ("tokenizer", "isolate_documents"),
    "task": ("tokenizer",),
    "compute": ("shard", "loss_chunk", "checkpoint_every"),
}


@dataclass(frozen=True, kw_only=True)
class Host:
    """A pretrained model of transformers that a run goes on training, with attached layer memory or
    without, in place of a decoder of ours."""

    model: str | None = None
    """Folder or hub name of the model; None: the run trains a decoder of ours."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub; None: the newest."""
    memory: Literal["full", "last", "first", "none"] = "full"
    """Earlier layers that a layer reads, as in `layermem.attach`; "none": no memory is attached."""
    window: int | None = number(None, at_least(1))
    """Number of layers that are read, the layer's own counted; with memory=last or first."""
    shares_kv: bool = True
    """Whether one router is for keys and values; False: each has its own."""
    grain: Literal["pair", "layer"] = "pair"
    """For what a router has a number at each layer read: a pair of heads, or all heads."""
    train: Literal["routers", "all", "lora"] = "routers"
    """What is trained: "routers" alone; "all" weights; or "lora" (PEFT) on keys and values without
    memory, of the smallest rank that has at least as many parameters as routers of memory=full."""

    def __post_init__(self) -> None:
        check_numbers(self, "host.")
        given = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if self.model is None and given:
            raise ValueError(
                f"host.{given[0]} is for a run that trains a model of transformers: add it "
                "(--host.model MODEL), or leave the option out"
            )
        if (self.memory in ("last", "first")) != (self.window is not None):
            raise ValueError(
                f"host.memory={self.memory} and host.window={self.window} do not go together: "
                "memory=last and memory=first have a window, full and none have none"
            )
        if self.memory == "none" and not (self.shares_kv and self.grain == "pair"):
            raise ValueError(
                f"host.shares_kv={self.shares_kv} and host.grain={self.grain} are of routers, and "
                "host.memory=none has none: leave them out, or attach a memory"
            )
        trained = ("all", "lora") if self.memory == "none" else ("routers", "all")
        if self.model is not None and self.train not in trained:
            raise ValueError(
                f"host.train={self.train} does not go with host.memory={self.memory}: choose "
                f"{' or '.join(trained)}, or another memory"
            )


def check_run(run: Any) -> None:
    """Raise where a field of a run would have no effect on a model of transformers."""
    if (run.host.model is not None) != (run.variant == VARIANT):
        raise ValueError(
            f"variant={run.variant} and host.model={run.host.model} do not go together: "
            f"variant={VARIANT} stands for a model of transformers (--host.model MODEL)"
        )
    if run.host.model is None:
        return
    for part, usual in _of_ours(run).items():
        for name, value in usual.items():
            if (given := getattr(getattr(run, part), name)) != value:
                raise ValueError(
                    f"{part}.{name}={given} is for decoders of ours, and this run trains "
                    f"{run.host.model}: leave {name} out"
                )
    if run.host.memory == "none" and run.optim.router_lr is not None:
        raise ValueError(
            f"optim.router_lr={run.optim.router_lr:g} has no effect with host.memory=none, which "
            "has no routers: leave it out, or attach a memory"
        )


def start_from_host(run: Any, model: str) -> Any:
    """Return a run that goes on training a model of transformers: what it says of decoders of ours
    gives way."""
    changed = {part: replace(getattr(run, part), **usual) for part, usual in _of_ours(run).items()}
    return replace(run, variant=VARIANT, host=replace(run.host, model=model), **changed)


def _of_ours(run: Any) -> dict[str, dict[str, Any]]:
    """Return the usual values of fields that say something of decoders of ours alone, by part."""
    usual = {part: type(getattr(run, part))() for part in _OF_OURS}
    return {
        part: {name: getattr(usual[part], name) for name in names or vars(usual[part])}
        for part, names in _OF_OURS.items()
    }
