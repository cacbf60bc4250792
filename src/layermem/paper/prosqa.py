"""ProsQA (section 5.3.1): proofs over graphs, by models that were pretrained on text."""

from collections.abc import Iterator

from layermem.paper.artefact import FINEWEB, Artefact, Observing, beside_plain, board
from layermem.paper.observing import right_answers
from layermem.presets import get_preset
from layermem.results.study import Claim, Drawing, PaperNumber, Scale
from layermem.study.definition import Board, Observed

_ARMS = ("plain", "lime")
_ANSWERS = "right answers"


def _study(scale: Scale) -> Board:
    base = get_preset(f"{scale}-prosqa")
    if scale != "paper":
        return board(name=base.preset, base=base, arms=_ARMS)
    text = board(name="paper-150m", base=get_preset("paper-150m"), arms=_ARMS)
    return board(name=base.preset, base=base, arms=_ARMS, starts_from=text)


def _boards(scale: Scale) -> tuple[Board, ...]:
    return (_study(scale),)


def _observe(trained: Observing) -> Iterator[Observed]:
    yield from right_answers(trained, _study(trained.scale).name, _ANSWERS)


def _claims(scale: Scale) -> tuple[Claim, ...]:
    return beside_plain(_ANSWERS, ("lime",), "higher")


ARTEFACT = Artefact(
    title="ProsQA: right answers of fine-tuned 150M models",
    claim="Fine-tuned on ProsQA LIMe answers 77.8% right, LLaMA 69.4%.",
    boards=_boards,
    observe=_observe,
    numbers=(
        PaperNumber(
            quantity=_ANSWERS, arm="plain", value=0.694, where="section 5.3.1", is_share=True
        ),
        PaperNumber(
            quantity=_ANSWERS, arm="lime", value=0.778, where="section 5.3.1", is_share=True
        ),
    ),
    claims=_claims,
    drawings=lambda scale: (Drawing(kind="bars", up="right answers"),),
    needs={"small": "a GPU", "paper": f"{FINEWEB}; days of GPUs for pretraining"},
    on_gpu=("small", "paper"),
    notes=(
        "Scales tiny and small start from new weights; where both arms are at chance nothing can "
        "be said about which is better.",
        "Records are drawn as the original ones are, but for a shortcut that these leave; the "
        "paper's numbers are of the original ones.",
        "Routers keep their own learning rate, 1e-2, in fine-tuning; the paper names 1e-4 alone.",
    ),
)
