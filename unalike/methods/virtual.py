"""VIRTUAL: Corinzia, Beuret & Buhmann, "Variational federated multi-task learning", 2019.

Weights are not numbers but Gaussians, one for each weight, as precision · mean and precision, which multiply by adding.
The server's posterior s is the product of a factor t_k for each client; each starts as an N-th of the prior:

    cavity   s / t_k                                          (what all others know: a client's prior)
    fit      q = argmin E_q[CE] + (κ / n_k) KL(q ‖ cavity)    by drawn weights w = mean + sd · ε, from s, in local steps
    send     Δ = γ (q − s);   t_k ← t_k + Δ (kept),   s ← s + Σ_k Δ

Differences are of natural parameters, so s is always the product of the factors. γ is the damping. `private="head"` (or
"last 2", …) makes that part each client's own: its Gaussians stay with the client, with the prior as their prior, and
neither they nor anything about them is sent. (The paper's lateral connections from shared to private layers are a
network of another shape, and not here.)

A model predicts with the mean weights. `drawn=8` lets clients predict with the mean output of so many drawn models.

Practical truth: two vectors each way, and it can be far ahead of FedAvg on skewed data, if γ fits: m participants who
all learn the same move s m times as far as each went. γ m about 5 was best in our trials (0.5 with 10 participants, 0.1
with 50); far above that it breaks down. The prior is N(w₀, 0.1²) around the run's start, at which networks learn; the
paper's is `centre="zero"`, `prior_sd=1`, with which the noise of all weights together hides what a client has learned.
κ = 1 is Bayes' rule; programs take far less, which is FedAvg in disguise. The authors' program also weighs Δ by
N n_k / Σ n: with unequal clients its server is no longer the product of the factors.
"""

from __future__ import annotations

import dataclasses as dc

import torch
from torch import Tensor

from unalike.contract import Answer, Batch, Cohort, Field, Fields, Me, Message, Method, Server, knob

LEAST = 1e-6  # precision of which a mean and a spread are formed, at least: a product of factors may fall below


@dc.dataclass(frozen=True)
class Virtual(Method):
    damping: float = knob(0.2, "γ, share of a client's change that counts", values="1", above=0, most=1, tune=(0.01, 1))
    kl_weight: float = knob(1.0, "κ, strength of the prior in a fit (1: Bayes' rule)", least=0, tune=(0.01, 3))
    prior_sd: float = knob(0.1, "standard deviation of the prior", values="1", above=0)
    centre: str = knob("start", "mean of the prior: the run's first weights, or 0", choices=("start", "zero"))
    private: str = knob("", 'part of the model that stays with a client ("": none)')
    draws: int = knob(1, "models drawn for each step of a fit", least=1)
    drawn: int = knob(0, "models drawn for a client's prediction (0: the mean weights)", least=0)

    name = "virtual"

    @property
    def travels(self) -> str:
        return f"all but {self.private}" if self.private else "model"

    @property
    def adapts(self) -> str:  # type: ignore[override]
        return self.private or "all"

    @property
    def keeps(self) -> dict[str, Field]:  # type: ignore[override]
        own = {"own": Field((2, self.private))} if self.private else {}
        return {"factor": Field((2, self.travels)), **own}

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        return {"delta": Field((2, self.travels), weight="one", what="its change of the weights' Gaussians")}

    # ---- Gaussians: [2, P], precision · mean and precision

    def prior(self, start: Tensor) -> Tensor:
        precision = torch.full_like(start, self.prior_sd**-2)
        return torch.stack([precision * start if self.centre == "start" else 0 * start, precision])

    def moments(self, gaussian: Tensor) -> tuple[Tensor, Tensor]:
        """Means and precisions."""
        precision = gaussian[1].clamp(min=LEAST)
        return gaussian[0] / precision, precision

    def shared(self, at: Me | Server, gaussian: Tensor) -> Tensor:
        """The part that travels."""
        return at.layout.part(gaussian, self.travels) if self.private else gaussian

    def joined(self, at: Me | Server, shared: Tensor, own: Tensor) -> Tensor:
        """The whole model's Gaussians: `shared` is the part that travels, the rest is taken from `own`, a model's."""
        return at.layout.with_part(own, self.travels, shared) if self.private else shared

    # ---- clients

    def posterior(self, me: Me, s: Fields, m: Fields) -> Tensor:
        """What this client believes of all weights before a fit: the server's, and its own."""
        own = self.prior(me.start)
        if self.private:
            kept = me.layout.with_part(own, self.private, s.own)
            own = me.own(kept, own)
        return self.joined(me, m.posterior, own)

    def factor(self, me: Me, s: Fields, m: Fields) -> Tensor:
        return me.own(s.factor, self.shared(me, self.prior(me.start)) * m.share)

    def client(self, me: Me, s: Fields, m: Fields) -> Answer:
        cavity = self.joined(me, m.posterior - self.factor(me, s, m), self.prior(me.start))
        mean, precision = self.moments(self.posterior(me, s, m))
        at = torch.stack([mean, -0.5 * precision.log()])  # a fit moves the mean and the logarithm of the sd
        return me.train(at, step=self.step, args={"cavity": cavity, "n": me.n}).then(self.end)

    def step(self, pair: Tensor, batches: list[Batch], lr: Tensor, cavity: Tensor, n: Tensor) -> Tensor:
        mean, spread = pair[0], pair[1].exp()
        noise = batches[0].normal("noise", (self.draws, mean.shape[-1]))
        slopes = torch.func.vmap(batches[0].grad)(mean + spread * noise)
        centre, precision = self.moments(cavity)
        # what the prior asks for is taken at the step's end (to first order): stable however precise the prior is
        strength = lr * self.kl_weight / n
        pull, bend = strength * precision, strength * precision * spread.square()
        mean = (mean - lr * slopes.mean(0) + pull * centre) / (1 + pull)
        wider = (strength - bend - lr * (slopes * noise).mean(0) * spread) / (1 + 2 * bend)
        return torch.stack([mean, pair[1] + wider])

    def end(self, me: Me, s: Fields, m: Fields, pair: Tensor) -> Answer:
        precision = (-2 * pair[1]).exp()
        found = torch.stack([precision * pair[0], precision])
        delta = self.damping * (self.shared(me, found) - m.posterior)
        own = {"own": me.layout.part(found, self.private)} if self.private else {}
        return {"factor": self.factor(me, s, m) + delta, **own}, {"delta": delta}

    def personal(self, me: Me, s: Fields, m: Fields) -> Tensor:
        mean, precision = self.moments(self.posterior(me, s, m))
        if not self.drawn:
            return mean
        return mean + me.normal("drawn", (self.drawn, mean.shape[-1])) / precision.sqrt()

    # ---- the server

    def setup(self, server: Server, everyone: Cohort) -> None:
        server.posterior = self.prior(server.w)
        server.w = self.moments(server.posterior)[0]

    def message(self, server: Server) -> Message:
        return {"posterior": self.shared(server, server.posterior)}

    def round(self, server: Server, cohort: Cohort) -> None:
        share = torch.ones_like(server.w[0]) / cohort.populations  # of the prior, in a client's first factor
        delta = cohort.call(self.client, share=share, **self.message(server)).sum("delta")
        server.posterior = server.posterior + self.joined(server, delta, torch.zeros_like(server.posterior))
        server.w = self.moments(server.posterior)[0]

    def published(self, server: Server) -> Message:
        return {"w": server.w, **self.message(server)}
