"""The stages of a channel, one file a family."""

from unalike.channel.stage import Stage
from unalike.channel.stages.clip import AdaptiveClip, Clip, ClipLayers
from unalike.channel.stages.integer_noise import DiscreteGaussian, IntegerNoise, Skellam
from unalike.channel.stages.noise import GaussianNoise, LocalNoise, Noise
from unalike.channel.stages.tree import TreeNoise

__all__ = [
    "STAGES",
    "AdaptiveClip",
    "Clip",
    "ClipLayers",
    "DiscreteGaussian",
    "GaussianNoise",
    "IntegerNoise",
    "LocalNoise",
    "Noise",
    "Skellam",
    "TreeNoise",
]

CLIPS = (Clip, ClipLayers, AdaptiveClip)
NOISES = (GaussianNoise, LocalNoise, Skellam, DiscreteGaussian, TreeNoise)

STAGES: dict[str, type[Stage]] = {kind.name: kind for kind in (*CLIPS, *NOISES)}
