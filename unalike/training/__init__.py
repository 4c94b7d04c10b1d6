"""Local training: its settings, the order of samples, optimizers and their update, augmentation."""

from unalike.training.optimizers import OPTIMIZERS, new_slots, slot_names, update
from unalike.training.order import Order
from unalike.training.settings import LocalTraining

__all__ = ["OPTIMIZERS", "LocalTraining", "Order", "new_slots", "slot_names", "update"]
