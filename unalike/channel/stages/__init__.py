"""The stages of a channel, one file a family."""

from unalike.channel.stage import Stage
from unalike.channel.stages.clip import Clip
from unalike.channel.stages.quantise import QSGD, BFloat, Half, Quantise, TernGrad
from unalike.channel.stages.sparsify import STC, RandomK, TopK

__all__ = ["QSGD", "STAGES", "STC", "BFloat", "Clip", "Half", "Quantise", "RandomK", "TernGrad", "TopK"]

KINDS: tuple[type[Stage], ...] = (
    Clip,
    Quantise, QSGD, TernGrad, Half, BFloat,
    TopK, RandomK, STC,
)  # fmt: skip
STAGES: dict[str, type[Stage]] = {kind.name: kind for kind in KINDS}
