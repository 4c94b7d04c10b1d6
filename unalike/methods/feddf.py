"""FedDF: Lin et al., "Ensemble distillation for robust model fusion in federated learning", NeurIPS 2020.

Rounds are FedAvg's; then the server lets the mean model learn from all of the round's models what they say together on
public samples, which need no labels:

    w ← Σ p_k θ_k,   then N steps of Adam on KL(σ(mean_k z_k) ‖ σ(z_w)) over the public set

With several architectures each has its own mean and its own student; the teachers are everybody's models. An
architecture that nobody brought stays as it was. Bytes as FedAvg's, and one vector goes up and down; but each client's
model is read by itself, so sums alone (secure aggregation) are not enough.

Public samples ([data] public): a share of the data without their labels (`public = 0.1`), another data set
("cifar100:5000"), noise ("noise:5000"), or what a generator of your own makes ("make.py:samples:5000").

Readings. `weights="uniform"` is the authors' program: its student begins at the plain mean. `start="last"` begins at
the last round's student instead. Teachers count equally in the target, as published; `teachers="samples"` weighs them
by n_k. `targets="probabilities"` is the mean of the softmaxes; `"losses"`, the mean of the divergences to each teacher,
has the same gradient. With `validation` above 0 that share of the public set, which must have labels, is held out, and
the student that is best on it is taken, as the program does on a tenth of the training data; else it is the last one.
The program's self-distillation at the clients is computed and thrown away, and is left out. Rows are drawn without end:
steps, not epochs.

Practical truth: it helps where the mean of the models is bad and the public rows are near the clients' data; noise
teaches less (digits, Dirichlet 0.1, 10 clients, 10 rounds, 3 seeds: 0.75 with 140 rows, 0.73 with noise or with smooth
random pictures, FedAvg 0.70; students that begin at the last one 0.64). Teachers count equally whatever their n_k: with
clients of very unequal size it goes where FedAvg with uniform weights goes (digits, Dirichlet 0.1, 50 clients: 0.55,
and FedAvg 0.69 after 40 rounds).
"""

from __future__ import annotations

import dataclasses as dc
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Batch, Best, Cohort, Field, Method, Replies, Server, knob
from unalike.errors import UnalikeError


@dc.dataclass(frozen=True)
class FedDF(Method):
    steps: int = knob(500, "N, of the server a round", values="up to 10,000", least=0, tune=[100, 300, 1000])
    lr: float = knob(1e-3, "Adam's rate on the server", above=0, tune=(1e-4, 1e-2))
    batch: int = knob(128, "public samples a step", least=1)
    clip: float = knob(5.0, "the gradient's norm is cut to this on the server", above=0)
    schedule: str = knob("cosine", "of the rate over the N steps (to zero, or none)", choices=("cosine", "constant"))
    temperature: float = knob(1.0, "of both softmaxes", above=0)
    targets: str = knob("logits", "what is averaged over the teachers", choices=("logits", "probabilities", "losses"))
    weights: str = knob(
        "samples", "of clients in the mean (n_k, as published, or equal)", choices=("samples", "uniform")
    )
    shuffle: bool = knob(True, "a new order of the public samples every pass")
    teachers: str = knob("uniform", "weights of teachers in the target", choices=("uniform", "samples"))
    start: str = knob("mean", "of the student: the clients' mean, or the last student", choices=("mean", "last"))
    validation: float = knob(
        0.0, "share of the labelled public samples by which the best student is chosen (0: the last one)", least=0,
        below=1,
    )  # fmt: skip
    every: int = knob(100, "steps between two looks at these", values="100", least=1)
    patience: int = knob(1000, "steps without a gain on these after which a student stops", values="1000", least=1)

    name = "feddf"
    sends = {"delta": Field(read="each", weight="weights")}  # each model is a teacher

    @property
    def needs_public(self) -> bool:  # type: ignore[override]
        return self.steps > 0

    def setup(self, server: Server, everyone: Cohort) -> None:
        if self.steps and self.validation:
            server.held, server.rest = self.divided(server)

    def divided(self, server: Server) -> tuple[Tensor, Tensor]:
        """Return the public rows that choose a student, every class by its share, and all others."""
        labels = server.outputs(None, fn=label)
        held = round(self.validation * len(labels))
        if not labels.sum(-1).all():
            raise UnalikeError(
                f"FedDF validation={self.validation} chooses students by labels of public samples, and these have none:"
                " take validation=0, or a public set with labels."
            )
        if not 0 < held < len(labels):
            raise UnalikeError(
                f"FedDF validation={self.validation} of {len(labels)} public samples is {held}: leave some on either "
                "side."
            )
        rows = server.draw("validation", held, stratify=True)
        rest = torch.ones(len(labels), dtype=torch.bool, device=rows.device).index_fill(0, rows, False)
        return rows, rest.nonzero()[:, 0]

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w)
        students = server.w + replies.mean("delta")
        if self.steps:
            teachers = server.outputs(server.w + replies.each("delta"), data="public")  # [participants, rows, classes]
            target = self.target(teachers, self.shares(cohort, replies))
            students = self.distilled(server, students if self.start == "mean" else server.w, target, replies)
        server.w = students

    def distilled(self, server: Server, students: Tensor, target: Tensor, replies: Replies) -> Tensor:
        chosen: dict[str, Any] = {}
        if self.validation:
            chosen = {"only": server.rest, "best": Best(right, server.held, self.every, self.patience)}
            target = target[server.rest]
        return server.train(
            students, data="public", own=0.0, loss=self.gap, rows={"target": target},
            steps=self.steps, batch_size=self.batch, optimizer="adam", lr=self.lr, clip_norm=self.clip,
            schedule=self.schedule, shuffle=self.shuffle, architectures=replies.architectures or None, **chosen,
        )  # fmt: skip

    def shares(self, cohort: Cohort, replies: Replies) -> np.ndarray | None:
        """Return the weight of each teacher, which come one architecture after another; None: all the same."""
        if self.teachers == "uniform":
            return None
        networks = replies.architectures
        ids = np.concatenate([*map(replies.ids_of, networks)]) if networks else replies.ids
        samples = cohort.only(ids).samples
        return np.asarray(samples / samples.sum())

    def target(self, teachers: Tensor, shares: np.ndarray | None = None) -> Tensor:
        """Return the classes' probabilities that the student is to have, [rows, classes]."""
        scaled = teachers / self.temperature
        scaled = scaled if self.targets == "logits" else scaled.softmax(-1)
        if shares is None:
            mean = scaled.mean(0)
        else:
            mean = torch.einsum("k,krc->rc", torch.from_numpy(shares).to(scaled), scaled)
        return mean.softmax(-1) if self.targets == "logits" else mean

    def gap(self, batch: Batch) -> Tensor:
        """KL(target ‖ student)."""
        target = batch.rows.target
        student = (batch.output / self.temperature).log_softmax(-1)
        return batch.mean((target * (target.clamp(min=1e-30).log() - student)).sum(-1))


def label(batch: Batch) -> Tensor:
    return batch.onehot


def right(batch: Batch) -> Tensor:
    """1 for a sample whose largest output is its label, else 0."""
    return (batch.output.argmax(-1) == batch.y).to(batch.output.dtype)
