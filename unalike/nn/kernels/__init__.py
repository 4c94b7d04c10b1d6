"""The GPU kernels behind `fast`, in Triton. Every client has its own weights."""

from unalike.nn.kernels.cells import gru_cell, gru_cell_backward, lstm_cell, lstm_cell_backward
from unalike.nn.kernels.conv import conv, conv_backward, conv_input_gradient, conv_weight_gradient
from unalike.nn.kernels.conv_pool import conv_pool, conv_pool_backward, unpool
from unalike.nn.kernels.depthwise import depthwise, depthwise_backward
from unalike.nn.kernels.norms import group_norm, group_norm_backward, linear, moments, sums
from unalike.nn.kernels.tuned import compiled_ahead

__all__ = [
    "compiled_ahead",
    "conv",
    "conv_backward",
    "conv_input_gradient",
    "conv_pool",
    "conv_pool_backward",
    "conv_weight_gradient",
    "depthwise",
    "depthwise_backward",
    "group_norm",
    "group_norm_backward",
    "gru_cell",
    "gru_cell_backward",
    "linear",
    "lstm_cell",
    "lstm_cell_backward",
    "moments",
    "sums",
    "unpool",
]
