"""MOCHA: Smith et al., "Federated multi-task learning", NeurIPS 2017.

Every client t has a linear model w_t of its own (a row of W), and the server learns who is like whom, Σ [m, m]:

    min Σ_t mean_i hinge(y_i x_i·w_t) + λ/2 tr(Wᵀ Σ⁻¹ W),       W = Σ B / λ,   b_t = mean_i α_i x_i   (a row of B)

Clients climb the dual, one number α_i a sample (y_i α_i in [0, 1]), sample by sample, and send what b_t gained:

    g = λ n_t (1 − y_i x_i·(w_t + ρ Δw)) / (ρ Σ_tt ‖x_i‖²) + y_i α_i,    α_i ← y_i clip(g, 0, 1),
    Δw += Σ_tt Δα_i x_i / (λ n_t)

The server mixes, W = Σ B / λ, and every so many rounds learns Σ = (W Wᵀ)^½ / trace and ρ = max_t Σ_s |Σ_ts| / Σ_tt.

What is trained is the last layer of the run's model, one class against the rest (one output for two classes is the
paper's problem, two are it and its mirror image), a bias being the weight of a constant 1. Earlier layers stay as they
began, and the run's loss, rate, epochs and batch size play no part: a client makes U(bottom, top) passes each round.

Practical truth: for tens of clients with little data each and good features. The server reads every client's b_t and
holds m × m numbers. λ counts m-fold while Σ = I/m: divide what suits a single SVM by the number of clients.
`reading="program"` is the authors' program, which goes on from the W of the old Σ after it has changed: that belongs to
no α, and "dual" exceeds "primal" for good. A client that has not come is unrelated to all, with Σ_tt = 1/m.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Message, Method, PerClient, Server, knob
from unalike.errors import UnalikeError

GAIN = Field("head", read="each", weight="one", what="its change of its own linear model")
VALUE = Field("scalar", weight="one", what="values of its objective")


@dc.dataclass(frozen=True)
class Mocha(Method):
    lam: float = knob(1e-3, "λ, strength of the regulariser", values="1e-5 to 10", above=0, tune=(1e-5, 1.0))
    every: int = knob(10, "rounds after which Σ is learned anew (0: it stays I/m)", values="100", least=0)
    bottom: float = knob(1.0, "passes over its samples that a client makes a round, at least", values="0.5", above=0)
    top: float = knob(1.0, "passes over its samples that a client makes a round, at most", values="0.5", above=0)
    reading: str = knob("remap", "W after a change of Σ: computed anew, or left", choices=("remap", "program"))
    certificate: bool = knob(False, "measure server.primal and server.dual every round: one more exchange, with all")

    name = "mocha"
    one_network = "relates clients by their weights"
    adapts = "head"
    keeps = {"alpha": Field(("samples", "classes"))}
    sends = {"gain": GAIN, "hinge": VALUE, "dual": VALUE}

    def __post_init__(self) -> None:
        if self.bottom > self.top:
            raise UnalikeError(f"Mocha needs bottom <= top; got bottom={self.bottom}, top={self.top}.")

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        """The run's model with a last layer of the client's own."""
        return me.layout.with_part(me.start, "head", m.own)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.outputs(me.start, data="train", fn=self.inputs).then(self.climb)

    def inputs(self, batch: Batch) -> Tensor:
        return batch.features

    def signs(self, batch: Batch) -> Tensor:
        """1 for an output whose class it is, else -1, [batch, outputs]; a single output is that of class 1."""
        if batch.y.is_floating_point() or batch.y.dim() != 1:
            raise UnalikeError("Mocha tells classes apart: the labels must be one class a sample, not numbers.")
        own = batch.onehot
        return 2 * (own if own.shape[-1] > 1 else batch.y[:, None].to(own)) - 1

    def climb(self, me: Me, s: Fields, m: Fields, x: Tensor) -> Answer:
        passes = self.bottom + (self.top - self.bottom) * me.uniform("passes", ())
        state = {"alpha": s.alpha, "left": (passes * me.n + 1e-4).floor().clamp(min=1)}
        scale, at = {"scale": m.rho * m.sigma / (self.lam * me.n)}, self.personal(me, s, m)
        one = me.train(at, step=self.step, state=state, args=scale, rows={"x": x}, epochs=self.top, batch_size=1)
        return one.then(self.end)

    def step(
        self, theta: Tensor, batches: list[Batch], lr: Tensor, alpha: Tensor, left: Tensor, scale: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        batch, sign = batches[0], self.signs(batches[0])
        head, old = batch.layout.head(theta), alpha[batch.index]
        output, times_x, *_ = torch.func.vjp(lambda numbers: batch.head(numbers, batch.rows.x), head)
        size = batch.rows.x.square().sum() + len(batch.layout.head_shapes) - 1  # ‖x‖², with the 1 of a bias
        g = (1 - sign * output) / (scale * size) + sign * old
        new = torch.where(left > 0, sign * g.clamp(0, 1), old)
        head = head + scale * times_x(new - old)[0]
        return batch.layout.with_part(theta, "head", head), {"alpha": batch.put(alpha, new), "left": left - 1}

    def end(self, me: Me, s: Fields, m: Fields, theta: Tensor, alpha: Tensor, left: Tensor) -> Answer:
        return {"alpha": alpha}, {"gain": self.lam / (m.rho * m.sigma) * (me.layout.head(theta) - m.own)}

    def measure(self, me: Me, s: Fields, m: Fields) -> Answer:
        return me.average(self.values, self.personal(me, s, m), rows={"alpha": s.alpha}).then(self.measured)

    def values(self, batch: Batch) -> dict[str, Tensor]:
        sign = self.signs(batch)
        return {"hinge": (1 - sign * batch.output).clamp(min=0).sum(-1), "dual": (sign * batch.rows.alpha).sum(-1)}

    def measured(self, me: Me, s: Fields, m: Fields, values: dict[str, Tensor]) -> Answer:
        return {}, {**values}

    def setup(self, server: Server, everyone: Cohort) -> None:
        tasks, shapes = everyone.population, server.layout.head_shapes
        if len(shapes[0]) != 2 or any(shape != shapes[0][:1] for shape in shapes[1:]):
            raise UnalikeError(f"Mocha learns the model's last layer, which must be linear; its tensors are {shapes}.")
        server.b = torch.zeros(tasks, server.layout.head_size).to(server.w).double()
        server.own, server.rho = server.b, 1.0
        server.sigma = torch.eye(tasks).to(server.b) / tasks

    def round(self, server: Server, cohort: Cohort) -> None:
        own, sigma = (PerClient(v[cohort.ids].to(server.w)) for v in (server.own, server.sigma.diagonal()))
        replies = cohort.call(self.client, rho=server.rho, own=own, sigma=sigma)
        gains = torch.zeros_like(server.b)
        gains[replies.ids] = replies.each("gain").double()
        server.b = server.b + gains
        server.own = server.own + server.sigma @ gains / self.lam
        if self.certificate:
            self.certify(server, cohort.everyone)
        if self.every and (cohort.round + 1) % self.every == 0:
            self.relate(server)
        server.w = server.layout.with_part(server.w, "head", server.own.mean(0).to(server.w))

    def relate(self, server: Server) -> None:
        """Learn Σ from the models of all who have ever come."""
        seen = server.b.any(1).nonzero()[:, 0]
        values, vectors = torch.linalg.eigh(server.own[seen] @ server.own[seen].T)
        root = vectors * torch.maximum(values, 1e-7 * values.sum()).sqrt() @ vectors.T  # no task vanishes
        sigma = torch.eye(len(server.b)).to(server.b) / len(server.b)
        sigma[seen[:, None], seen] = root / root.trace() * (len(seen) / len(server.b))
        server.sigma, server.rho = sigma, float((sigma.abs().sum(1) / sigma.diagonal()).max())
        if self.reading == "remap":
            server.own = sigma @ server.b / self.lam

    def certify(self, server: Server, everyone: Cohort) -> None:
        """Measure primal and dual, summed over classes: dual <= primal while W = Σ B / λ."""
        replies = everyone.call(self.measure, own=PerClient(server.own.to(server.w)))
        energy = self.lam / 2 * float((server.own * torch.linalg.solve(server.sigma, server.own)).sum())
        server.primal = float(replies.sum("hinge")) + energy
        server.dual = float(replies.sum("dual")) - energy

    def published(self, server: Server) -> Message:
        return {"w": server.w, "own": PerClient(server.own.to(server.w))}

    def models(self, server: Server) -> dict[str, Tensor]:
        return {}
