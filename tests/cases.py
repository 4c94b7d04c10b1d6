"""One line per method: what the shared tests over the registry need to know of it."""

import dataclasses as dc

import unalike as ua
from unalike import testing

LOCAL = testing.settings()["local"]
EVEN = {"local": ua.LocalTraining(steps=3, batch_size=5, lr=0.05)}
FREE = {"local": dc.replace(LOCAL, clip_norm=None)}
PLAIN = {"local": dc.replace(LOCAL, clip_norm=None, weight_decay=0.0)}  # what a step of one's own knows
STORED = {"local": dc.replace(PLAIN["local"], shuffle=False)}  # a second training of a round reads the same batches
UNIFORM = ua.FedAvg(weights="uniform")
GENERATOR = ua.FedGen(alpha=1.0, beta=1.0, generated=4, steps=3, lr=0.01, noise=3, hidden=6)
KIND = {"fedbn": "norm"}  # the model on which a method is itself, where that is not any
# A method in its usual strength; its knob off (None: it has none); what it then is, and in which setting.
CASES = {
    "fedavg": (ua.FedAvg(), None, None, {}),
    "fedprox": (ua.FedProx(mu=1.0), ua.FedProx(mu=0.0), ua.FedAvg(), {}),
    # SCAFFOLD has no knob: its variates are zero in the first round, which is FedAvg's with uniform weights
    "scaffold": (ua.Scaffold(), ua.Scaffold(), UNIFORM, {"rounds": 1}),
    "qfedavg": (ua.QFedAvg(q=1.0), ua.QFedAvg(q=0.0), UNIFORM, {}),
    "fednova": (ua.FedNova(), ua.FedNova(), ua.FedAvg(), EVEN),  # with equal work it is FedAvg
    # FedDyn's server adds the drift whatever alpha is: it never is FedAvg
    "feddyn": (ua.FedDyn(alpha=0.1), None, None, {}),
    "feddc": (ua.FedDC(alpha=0.1), ua.FedDC(0.1, "official", correction=False), ua.FedDyn(alpha=0.1), FREE),
    "rfedavg": (ua.RFedAvg(lam=0.3), ua.RFedAvg(lam=0.0), ua.FedAvg(), {}),
    "rfedavg-plus": (ua.RFedAvgPlus(lam=0.3), ua.RFedAvgPlus(lam=0.0), ua.FedAvg(), {}),
    "fedfa": (
        ua.FedFa(), ua.FedFa(client_momentum=0.0, server_momentum=0.0, weighting="samples"), ua.FedAvg(), {},
    ),
    "fedavgr": (ua.FedAvgR(1e-2, 1e-2, 0.1), ua.FedAvgR(0.0, 0.0, 0.0), ua.FedAvg(), {}),
    "oneshot": (ua.OneShot(epochs=3), None, None, {}),
    "flhc": (ua.FLHC(2, warmup=0), ua.FLHC(1, warmup=0), ua.FedAvg(), {}),
    "fedavgm": (ua.FedAvgM(), ua.FedAvgM(server_momentum=0.0), ua.FedAvg(), {}),
    "fedadagrad": (ua.FedAdagrad(), None, None, {}),
    "fedyogi": (ua.FedYogi(), None, None, {}),
    "fedadam": (ua.FedAdam(), None, None, {}),
    "def-kt": (ua.DefKT(), None, None, {}),  # no global model: tests/methods/test_distillation.py
    # a small rate: Adam makes a full step of rounding where the gradient is zero (a bias before BatchNorm)
    "feddf": (ua.FedDF(steps=3, batch=3, lr=2e-6), ua.FedDF(steps=0), ua.FedAvg(), {}),
    "fedgen": (GENERATOR, dc.replace(GENERATOR, alpha=0.0, beta=0.0), ua.FedAvg(), {}),
    "fedmd": (ua.FedMD(rows=5, warm_public=1, warm_own=1, batch=3, lr=0.01), None, None, {}),
    "fedmix": (ua.FedMix(lam=0.2, group=3), ua.FedMix(lam=0.0), ua.FedAvg(), {}),
    "naivemix": (ua.NaiveMix(lam=0.2, group=3), ua.NaiveMix(lam=0.0), ua.FedAvg(), {}),
    "local-mixup": (ua.LocalMixup(), ua.LocalMixup(0.0), ua.FedAvg(), {}),
    "data-sharing": (ua.DataSharing(0.5, 1, 4), ua.DataSharing(0.0, 0), ua.FedAvg(), {}),
    "hybrid-fl": (ua.HybridFL(0.4, 5, 1.0, 1, 4), ua.HybridFL(0.0), ua.FedAvg(), {}),
    "astraea": (ua.Astraea(1.0, 2, 2), ua.Astraea(None, 1), ua.FedAvg(), {}),
    "xormixfl": (ua.XorMixFL(5, low=-3.0, high=3.0, epochs=1, batch=5), None, None, {}),
    "cronus": (ua.Cronus(epsilon=0.25, warm_epochs=1), None, None, {}),
    "fd": (ua.FD(average=True), ua.FD(0.0, average=True), ua.FedAvg(), {}),
    "fedproto": (ua.FedProto(lam=1.0), None, None, {}),
    "apfl": (ua.APFL(0.3, 0.1), ua.APFL(0.0), UNIFORM, PLAIN),
    "dapper": (ua.Dapper(0.7), None, None, {}),
    "ditto": (ua.Ditto(0.3), None, None, {}),
    "fedamp": (ua.FedAMP(0.1, 0.5, 2.0), None, None, {}),
    "heur-fedamp": (ua.HeurFedAMP(0.1), None, None, {}),
    "fedbabu": (ua.FedBABU(), None, None, {}),
    "fedbn": (ua.FedBN(), None, None, {}),
    "fedmeta": (ua.FedMeta(0.1, 0.1, "meta-sgd"), None, None, {}),
    "fedcurv": (ua.FedCurv(0.3), ua.FedCurv(0.0), ua.FedAvg(), {}),
    "mocha": (ua.Mocha(0.05, 1, 0.5, 1.5, certificate=True), None, None, {}),
    "virtual": (ua.Virtual(0.3, prior_sd=1.0, private="head"), None, None, {}),
    "fedper": (ua.FedPer(), None, None, {}),
    "fedrep": (ua.FedRep(head_epochs=2), None, None, {}),
    "finetune": (ua.FineTune(), ua.FineTune(epochs=0), ua.FedAvg(), {}),
    "l2gd": (ua.L2GD(0.5, variant="steady"), None, None, {}),
    "lg-fedavg": (ua.LGFedAvg(), None, None, {}),
    "mapper": (ua.Mapper((0.2, 0.6)), ua.Mapper((0.0,)), ua.FedAvg(), STORED),
    "per-fedavg": (ua.PerFedAvg(0.1), None, None, {}),
    "pfedme": (ua.PFedMe(1.0, 0.05, 2), None, None, {}),
    "reptile": (ua.Reptile(0.5), None, None, {}),
    "cfl": (ua.CFL(9.0, 0.0, after=0, gamma=0.0), ua.CFL(0.0), UNIFORM, {}),  # every cluster of more than two is split
    "fedcluster": (ua.FedCluster(2), ua.FedCluster(1), ua.FedAvg(), {}),
    "fedfmc": (ua.FedFMC(2, 1.0, fork=1, consolidate=1), ua.FedFMC(1, 0.0, 1, 1), ua.FedAvg(), {}),
    "fesem": (ua.FeSEM(2), ua.FeSEM(1), UNIFORM, {}),
    "hypcluster": (ua.HypCluster(2, starts=2, trial=1), ua.HypCluster(1), ua.FedAvg(), {}),
    "ifca": (ua.IFCA(2, clustered="head"), ua.IFCA(1), UNIFORM, {}),
    "moon": (ua.Moon(mu=1.0), ua.Moon(mu=0.0), ua.FedAvg(), {}),
    "fedntd": (ua.FedNTD(beta=1.0), ua.FedNTD(beta=0.0), ua.FedAvg(), {}),
    "fedlc": (ua.FedLC(tau=1.0), ua.FedLC(tau=0.0), ua.FedAvg(), {}),
    "fedrs": (ua.FedRS(0.5, "share"), ua.FedRS(1.0, "share"), ua.FedAvg(), {}),
    "fedsam": (ua.FedSAM(0.1), ua.FedSAM(0.0), ua.FedAvg(), {}),
    "fedasam": (ua.FedASAM(0.3), ua.FedASAM(0.0), ua.FedAvg(), {}),
    "fedexp": (ua.FedExP(1e-4), ua.FedExP(1e12, judged="last"), ua.FedAvg(), {}),
    "ccvr": (ua.CCVR(virtual=3, epochs=2, batch=4), ua.CCVR(epochs=0), ua.FedAvg(), {}),
    "powersgd": (ua.PowerSGD(1), ua.PowerSGD(10**6), ua.FedAvg(), {}),  # so many columns make no matrix smaller
    # with nobody left out of a buffer it is FedAvg
    "fedbuff": (ua.FedBuff(2), ua.FedBuff(5), UNIFORM, {}),
    "fedasync": (ua.FedAsync(0.5, "hinge:1:0"), None, None, {}),
    "astw": (ua.ASTW(2, 1), None, None, {}),  # whoever has not come counts with the first model: it never is FedAvg
    "hist-boost": (ua.HistBoost(trees=2, depth=2, bins=4, least=0.1), None, None, {}),
    "tree-bagging": (ua.TreeBagging(trees=4, depth=2, bins=4, least=0.1), None, None, {}),
    "tree-cyclic": (ua.TreeCyclic(trees=2, depth=2, bins=4, least=0.1), None, None, {}),
    "centralized": (ua.Centralized(), None, None, {"clients_per_round": 1}),
    "local-only": (ua.LocalOnly(), None, None, {}),
}  # fmt: skip
