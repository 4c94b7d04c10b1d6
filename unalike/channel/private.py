"""What a channel with noise requires of a method and of a model. Anything that would travel outside the noise, or
reveal who took part, is refused before a run begins, each with its own error."""

from __future__ import annotations

from collections.abc import Sequence

from unalike.channel.stage import Stage, refuse
from unalike.channel.stages import Noise
from unalike.contract import Method
from unalike.errors import UnalikeError
from unalike.nn.task import Task


def check_private(stages: Sequence[Stage], acts: Sequence[Sequence[str]], method: Method, task: Task) -> None:
    """Refuse a method or a model whose messages the noise does not cover; acts: the fields of each stage."""
    kind = type(method).__name__
    if task.averages_buffers:
        raise UnalikeError(
            "channel: BatchNorm's statistics would be averaged outside the noise: give buffers='freeze' or 'local'."
        )
    central = next((stage for stage in stages if isinstance(stage, Noise) and not stage.local), None)
    if central is not None and method.sees_who:
        raise refuse(
            central,
            f"{kind} reads who takes part or answers, which this noise does not cover: take another method "
            "(docs/privacy.md lists them).",
        )
    covered: dict[str, Noise] = {}
    for stage, fields in zip(stages, acts, strict=True):
        if isinstance(stage, Noise):
            covered |= dict.fromkeys(fields, stage)
            clipped = acts[next(k for k, other in enumerate(stages) if other is stage.clip)]
            for name in fields:
                if name not in clipped:
                    raise refuse(stage, f"{name!r} goes past {stage.clip}: clip all fields that the noise is on.")
    for name, field in method.sends.items():
        if field.read == "sealed" or name not in covered:
            raise UnalikeError(f"channel: {kind} sends {name!r} past the noise: all that a client sends must have it.")
        noise = covered[name]
        if field.read != "sum" and not noise.local:
            raise refuse(
                noise,
                f"{kind} reads {name!r} of every single client (read={field.read!r}), and this noise is on sums: take "
                "local-noise, or another method.",
            )
        if not noise.local and field.weight not in ("samples", "one") and field.weighting(method) == "samples":
            raise refuse(
                noise,
                f"weighed by samples, a large client moves the sum by more than the clip: give {kind} "
                f"{field.weight}='uniform' (--{field.weight} uniform).",
            )
