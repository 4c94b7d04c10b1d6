"""Local training: its settings, the order of samples, optimizers and their update, augmentation."""

from unalike.training.optimizers import OPTIMIZERS, Slots, new_slots, plain_step, plain_update, slot_names, update
from unalike.training.order import Order
from unalike.training.settings import LocalTraining, bare
from unalike.training.transfer import pack, to_device, unpack

__all__ = [
    "OPTIMIZERS", "LocalTraining", "Order", "Slots", "bare", "new_slots", "pack", "plain_step",
    "plain_update", "slot_names", "to_device", "unpack", "update",
]  # fmt: skip
