"""A server's wishes in plain words, for the person who is asked to agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unalike.client import Job
from unalike.contract import LOSS, Field
from unalike.training import LocalTraining

LEAVES = {
    "sum": "only their sum over clients is needed",
    "each": "each client's is read",
    "sealed": "sealed for others",
}


def facts_words(facts: Mapping[str, Any]) -> str:
    """Return in words the facts that a client tells when it is greeted."""
    sizes = ", ".join(f"{count} for {name}" for name, count in facts["sizes"].items() if count)
    classes = "a number to predict" if facts["classes"] is None else f"{facts['classes']} classes"
    return (
        f"The server asks who is here. It will be told: how many samples there are ({sizes}), their shape "
        f"({facts['x'][1]}), {classes}, and a hash of the public set if there is one."
    )


def sums_words(samples: int, features: int, hidden: bool = False) -> str:
    """Return in words what leaves when features are prepared."""
    return (
        f"The server asks for sums over the {samples} training samples, to bring {features} features into comparable "
        "units: of every feature how many rows have it, their sum, and the sum of squared distances from a mean."
        + (" It learns only their totals over all clients." if hidden else "")
    )


def plan_words(run: str, job: Job, digest: str, fields: Mapping[str, Field]) -> str:
    """Return in words what a plan asks of this client, and what it will send."""
    method, task = job.method, job.task
    stages = job.channel.stages if job.channel is not None else ()
    lines = [
        f"The run {run}, of {len(job.data)} clients, wants to train a network of {task.layout.size} numbers ({digest}) "
        f"by {method}.",
        f"Each training here: {local_words(job.local)}; a method may ask for others, within this client's policy.",
        "What leaves, at most, in every exchange:",
        *(f"  {name}: {_field_words(field, job)}" for name, field in fields.items() if name != LOSS or not job.hidden),
        f"Through the channel: {', '.join(map(str, stages)) or 'none, as it is'}.",
    ]
    if method.ships:
        lines.append(f"THIS METHOD SENDS SAMPLES: {method.ships}.")
    return "\n".join(lines)


def local_words(local: LocalTraining) -> str:
    """Return in words how much is trained."""
    amount = f"{local.steps} steps" if local.steps is not None else f"{local.epochs} passes"
    batch = "all samples at once" if local.batch_size is None else f"batches of {local.batch_size}"
    return f"{amount}, {batch}, {local.optimizer}, rate {local.lr}"


def _field_words(field: Field, job: Job) -> str:
    shape = field.resolve(job.task.sizes, job.method)
    what = f", {field.what}" if getattr(field, "what", "") else ""
    return f"{list(shape) or 'a number'}{what} ({LEAVES.get(field.read, field.read)})"
