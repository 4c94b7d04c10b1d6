"""The stages of a channel, one file per family."""

from unalike.channel.stage import Stage
from unalike.channel.stages.clip import AdaptiveClip, Clip, ClipLayers
from unalike.channel.stages.encrypted import Ckks, Encrypted, Paillier
from unalike.channel.stages.integer_noise import DiscreteGaussian, IntegerNoise, Skellam
from unalike.channel.stages.noise import GaussianNoise, LocalNoise, Noise
from unalike.channel.stages.quantise import QSGD, BFloat, Half, Quantise, TernGrad
from unalike.channel.stages.secure_sum import SecureSum, Summed
from unalike.channel.stages.sparsify import STC, RandomK, TopK
from unalike.channel.stages.tree import TreeNoise

__all__ = [
    "QSGD", "STAGES", "STC", "AdaptiveClip", "BFloat", "Ckks", "Clip", "ClipLayers", "DiscreteGaussian", "Encrypted",
    "GaussianNoise", "Half", "IntegerNoise", "LocalNoise", "Noise", "Paillier", "Quantise", "RandomK", "SecureSum",
    "Skellam", "Summed", "TernGrad", "TopK", "TreeNoise",
]  # fmt: skip

KINDS: tuple[type[Stage], ...] = (
    Clip, ClipLayers, AdaptiveClip,
    Quantise, QSGD, TernGrad, Half, BFloat,
    TopK, RandomK, STC,
    GaussianNoise, LocalNoise, Skellam, DiscreteGaussian, TreeNoise,
    SecureSum, Paillier, Ckks,
)  # fmt: skip
STAGES: dict[str, type[Stage]] = {kind.name: kind for kind in KINDS}
