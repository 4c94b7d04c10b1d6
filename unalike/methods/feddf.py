"""FedDF: Lin et al., "Ensemble distillation for robust model fusion in federated learning", NeurIPS 2020.

Rounds are FedAvg's; then the server lets the mean model learn from all of the round's models what they say together on
public pictures, which need no labels:

    w ← Σ p_k θ_k,   then N steps of Adam on KL(σ(mean_k z_k) ‖ σ(z_w)) over the public set

With several architectures each has its own mean and its own student; the teachers are everybody's models. An
architecture that nobody brought stays as it was. Bytes as FedAvg's, and one vector goes up and down; but each client's
model is read by itself, so sums alone (secure aggregation) are not enough.

`weights="uniform"` is the authors' program: its student begins at the plain mean. `targets="probabilities"` is the mean
of the softmaxes; `"losses"`, the mean of the divergences to each teacher, has the same gradient. The program picks the
best student on a labelled validation set of the server (a tenth of the training data); here it is the last one. Its
self-distillation at the clients is computed and thrown away, and is left out. Rows are drawn without end: steps, not
epochs.

Practical truth: it helps where the mean of the models is bad and the public rows are near the clients' data; the target
on noise teaches little. Teachers count equally whatever their n_k: with clients of very unequal size it goes where
FedAvg with uniform weights goes (digits, Dirichlet 0.1, 50 clients: 0.55, and FedAvg 0.69 after 40 rounds).
"""

from __future__ import annotations

import dataclasses as dc

from torch import Tensor

from unalike.contract import Batch, Cohort, Field, Method, Server, knob


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

    name = "feddf"
    sends = {"delta": Field(read="each", weight="weights")}  # each model is a teacher

    @property
    def needs_public(self) -> bool:  # type: ignore[override]
        return self.steps > 0

    def round(self, server: Server, cohort: Cohort) -> None:
        replies = cohort.call(self.client, w=server.w)
        students = server.w + replies.mean("delta")
        if self.steps:
            teachers = server.outputs(server.w + replies.each("delta"), data="public")  # [participants, rows, classes]
            students = server.train(
                students, data="public", own=0.0, loss=self.gap, rows={"target": self.target(teachers)},
                steps=self.steps, batch_size=self.batch, optimizer="adam", lr=self.lr, clip_norm=self.clip,
                schedule=self.schedule, shuffle=self.shuffle, architectures=replies.architectures or None,
            )  # fmt: skip
        server.w = students

    def target(self, teachers: Tensor) -> Tensor:
        """Return the classes' probabilities that the student is to have, [rows, classes]."""
        scaled = teachers / self.temperature
        return scaled.mean(0).softmax(-1) if self.targets == "logits" else scaled.softmax(-1).mean(0)

    def gap(self, batch: Batch) -> Tensor:
        """KL(target ‖ student)."""
        target = batch.rows.target
        student = (batch.output / self.temperature).log_softmax(-1)
        return batch.mean((target * (target.clamp(min=1e-30).log() - student)).sum(-1))
