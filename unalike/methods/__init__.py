"""The methods, one file each; METHODS finds them by the name used on the command line."""

from unalike.contract import Method
from unalike.methods.fedavg import FedAvg
from unalike.methods.fedprox import FedProx
from unalike.methods.scaffold import Scaffold

METHODS: dict[str, type[Method]] = {"fedavg": FedAvg, "fedprox": FedProx, "scaffold": Scaffold}

__all__ = ["METHODS", "FedAvg", "FedProx", "Scaffold"]
