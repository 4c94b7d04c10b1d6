"""The methods, one file each; METHODS finds them by the name used on the command line."""

from unalike.contract import Method
from unalike.methods.fedavg import FedAvg
from unalike.methods.fedavgr import FedAvgR
from unalike.methods.feddc import FedDC
from unalike.methods.feddyn import FedDyn
from unalike.methods.fedfa import FedFa
from unalike.methods.fednova import FedNova
from unalike.methods.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from unalike.methods.fedprox import FedProx
from unalike.methods.flhc import FLHC
from unalike.methods.oneshot import OneShot
from unalike.methods.qfedavg import QFedAvg
from unalike.methods.reference import Centralized, LocalOnly
from unalike.methods.rfedavg import RFedAvg
from unalike.methods.rfedavg_plus import RFedAvgPlus
from unalike.methods.scaffold import Scaffold

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "qfedavg": QFedAvg,
    "fednova": FedNova,
    "feddyn": FedDyn,
    "feddc": FedDC,
    "rfedavg": RFedAvg,
    "rfedavg-plus": RFedAvgPlus,
    "fedfa": FedFa,
    "fedavgr": FedAvgR,
    "oneshot": OneShot,
    "flhc": FLHC,
    "fedavgm": FedAvgM,
    "fedadagrad": FedAdagrad,
    "fedyogi": FedYogi,
    "fedadam": FedAdam,
    "centralized": Centralized,
    "local-only": LocalOnly,
}

__all__ = ["METHODS", *sorted(cls.__name__ for cls in METHODS.values())]
