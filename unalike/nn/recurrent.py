"""nn.LSTM, nn.GRU and nn.RNN unrolled into plain products, and their cells: slower for one client, but they can be
stacked."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from unalike.errors import EngineRefused, UnalikeError
from unalike.nn.keyed import layer_mask


class Unrolled(nn.RNNBase):
    """A recurrent layer, direction by direction (`scan`). States are tuples: (hidden,), or (hidden, cell)."""

    def forward(self, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:  # type: ignore[override]
        if isinstance(input, PackedSequence):
            if self.dropout:
                raise UnalikeError(
                    "A recurrent layer with dropout reads a PackedSequence: set its dropout to 0, or give it padded "
                    "sequences."
                )
            raise EngineRefused("a recurrent layer reads a PackedSequence")
        if self.batch_first:
            input = input.transpose(0, 1)  # [time, batch, features] from here on
        starts = hx if hx is None or isinstance(hx, tuple | list) else (hx,)
        suffixes = ("", "_reverse")[: 2 if self.bidirectional else 1]
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for suffix in suffixes:
                start = None if starts is None else tuple(s[len(ends)] for s in starts)
                out, end = self.scan(input.flip(0) if suffix else input, f"_l{layer}{suffix}", start)
                outputs.append(out.flip(0) if suffix else out)
                ends.append(end)
            input = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
            if self.dropout and self.training and layer < self.num_layers - 1:
                input = input * layer_mask(self, input, self.dropout, tuple(input.shape))
        last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
        return input.transpose(0, 1) if self.batch_first else input, last if len(last) > 1 else last[0]

    def scan(self, x: Tensor, suffix: str, start: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run one layer in one direction; return the hidden states [time, batch, hidden] and the last state."""
        weight, (gates, bias) = getattr(self, "weight_hh" + suffix), self.gates(x, suffix)
        if start is None:
            zeros = torch.zeros_like(gates[0, :, : self.hidden_size])
            start = (zeros,) * (2 if self.mode == "LSTM" else 1)
        out, state = [], start
        for gate in gates.unbind():
            state = self.cell(gate, F.linear(state[0], weight, bias), *state)
            out.append(state[0])
        return torch.stack(out), state

    def gates(self, x: Tensor, suffix: str) -> tuple[Tensor, Tensor | None]:
        """Return the gates' part from input and biases, and the bias that belongs to the hidden state's part."""
        gates = F.linear(x, getattr(self, "weight_ih" + suffix))
        if self.bias:
            gates = gates + (getattr(self, "bias_ih" + suffix) + getattr(self, "bias_hh" + suffix))
        return gates, None

    def cell(self, gates: Tensor, inner: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the next state; inner: the hidden state's part of the gates."""
        raise NotImplementedError


class PureLSTM(Unrolled, nn.LSTM):  # type: ignore[misc]
    """nn.LSTM unrolled."""

    def cell(self, gates: Tensor, inner: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        return _lstm(gates + inner, state[1])


class PureGRU(Unrolled, nn.GRU):  # type: ignore[misc]
    """nn.GRU unrolled. The reset gate multiplies a bias too: that bias stays with the hidden state's part."""

    def gates(self, x: Tensor, suffix: str) -> tuple[Tensor, Tensor | None]:
        gates = F.linear(x, getattr(self, "weight_ih" + suffix), getattr(self, "bias_ih" + suffix, None))
        return gates, getattr(self, "bias_hh" + suffix, None)

    def cell(self, gates: Tensor, inner: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        return (_gru(gates, inner, state[0]),)


class PureRNN(Unrolled, nn.RNN):  # type: ignore[misc]
    """nn.RNN unrolled."""

    def cell(self, gates: Tensor, inner: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        whole = gates + inner
        return (torch.tanh(whole) if self.mode == "RNN_TANH" else torch.relu(whole),)


class PureLSTMCell(nn.LSTMCell):
    """nn.LSTMCell in plain products."""

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = (_zeros(self, input), _zeros(self, input)) if hx is None else hx
        gates, inner = _gates(self, input, h)
        return _lstm(gates + inner, c)


class PureGRUCell(nn.GRUCell):
    """nn.GRUCell in plain products."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        h = _zeros(self, input) if hx is None else hx
        return _gru(*_gates(self, input, h), h)


class PureRNNCell(nn.RNNCell):
    """nn.RNNCell in plain products."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        gates, inner = _gates(self, input, _zeros(self, input) if hx is None else hx)
        whole = gates + inner
        return torch.tanh(whole) if self.nonlinearity == "tanh" else torch.relu(whole)


def _zeros(cell: nn.RNNCellBase, x: Tensor) -> Tensor:
    return x.new_zeros(*x.shape[:-1], cell.hidden_size)


def _gates(cell: nn.RNNCellBase, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gates' parts from the input and from the hidden state."""
    return F.linear(x, cell.weight_ih, cell.bias_ih), F.linear(h, cell.weight_hh, cell.bias_hh)


def _lstm(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(gates: Tensor, inner: Tensor, h: Tensor) -> Tensor:
    (r, z, n), (own_r, own_z, own_n) = gates.chunk(3, -1), inner.chunk(3, -1)
    update = torch.sigmoid(z + own_z)
    new = torch.tanh(n + torch.sigmoid(r + own_r) * own_n)
    return new + update * (h - new)


PURE: dict[type[nn.RNNBase], type[Unrolled]] = {nn.LSTM: PureLSTM, nn.GRU: PureGRU, nn.RNN: PureRNN}
CELLS: dict[type[nn.Module], type[nn.Module]] = {
    nn.LSTMCell: PureLSTMCell, nn.GRUCell: PureGRUCell, nn.RNNCell: PureRNNCell,
}  # fmt: skip
