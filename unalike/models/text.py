"""Next-character prediction, as on LEAF's Shakespeare."""

from __future__ import annotations

from torch import Tensor, nn

from unalike.models._options import whole


class CharLSTM(nn.Module):
    """Embedding, stacked LSTM, head. Takes tokens [B, T] and predicts the one that follows the last.

    With `hidden=100`, as in FedDyn's experiments, it has 133,520 parameters; LEAF's own has `hidden=256`. The
    features are the top layer's state after the last token, so padding, if there is any, belongs in front.
    """

    def __init__(self, vocabulary: int = 80, embedding: int = 8, hidden: int = 100, layers: int = 2, classes: int = 80):
        super().__init__()
        vocabulary, embedding = whole("vocabulary", vocabulary), whole("embedding", embedding)
        hidden, layers = whole("hidden", hidden), whole("layers", layers)
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, whole("classes", classes))

    def forward(self, tokens: Tensor) -> Tensor:
        # Characters are best stored as bytes, which an embedding refuses; floats are left for it to refuse.
        indices = tokens if tokens.is_floating_point() else tokens.long()
        states, _ = self.lstm(self.embedding(indices))
        return self.head(states[:, -1])
