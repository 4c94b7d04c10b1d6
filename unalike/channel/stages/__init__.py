"""The stages of a channel, one file a family."""

from unalike.channel.stage import Stage
from unalike.channel.stages.clip import Clip

__all__ = ["STAGES", "Clip"]

STAGES: dict[str, type[Stage]] = {kind.name: kind for kind in (Clip,)}
