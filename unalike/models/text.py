"""Text: the next character, as on LEAF's Shakespeare, and the mood of a tweet, as on Sent140."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from unalike.errors import UnalikeError
from unalike.models._options import Classes, Embedding, Hidden, Layers, Vocabulary, whole
from unalike.models.start import remembered
from unalike.settings.knobs import Knob


@remembered("char-lstm")
class CharLSTM(nn.Module):
    """Embedding, stacked LSTM, head. Takes tokens [B, T] and predicts the one that follows the last.

    With `hidden=100`, as in FedDyn's experiments, it has 133,520 parameters; LEAF's own has `hidden=256`. The
    features are the top layer's state after the last token, so padding, if there is any, belongs in front.
    """

    def __init__(
        self, vocabulary: Vocabulary = 80, embedding: Embedding = 8, hidden: Hidden = 100, layers: Layers = 2,
        classes: Classes = 80,
    ):  # fmt: skip
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


@remembered("tweet-lstm")
class TweetLSTM(nn.Module):
    """rFedAvg's Sent140 network: frozen word vectors, two LSTM layers, head. Takes tokens [B, T].

    1,998,242 parameters with the paper's 3,000 words of 300 numbers, of which 1,098,242 are trained and travel.
    `vectors` is a .npy file [vocabulary, embedding] (unalike.data.text makes one from GloVe); without it the word
    vectors are random, and then `freeze=False` is worth a try. The features are the state after the last token, so
    padding belongs in front.
    """

    def __init__(
        self,
        vocabulary: Vocabulary = 3000,
        embedding: Embedding = 300,
        hidden: Hidden = 256,
        layers: Layers = 2,
        classes: Classes = 2,
        freeze: Annotated[bool, Knob("word vectors stay as they are")] = True,
        vectors: Annotated[str | None, Knob("a .npy file of word vectors", file=True)] = None,
    ):
        super().__init__()
        vocabulary, embedding = whole("vocabulary", vocabulary), whole("embedding", embedding)
        hidden, layers = whole("hidden", hidden), whole("layers", layers)
        self.embedding = nn.Embedding(vocabulary, embedding)
        if vectors is not None:
            self.embedding.weight.data.copy_(_word_vectors(vectors, vocabulary, embedding))
        self.embedding.weight.requires_grad_(not freeze)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, whole("classes", classes))

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens.long()))
        return self.head(states[:, -1])


def _word_vectors(path: str, vocabulary: int, embedding: int) -> Tensor:
    try:
        found = np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError):
        raise UnalikeError(f"{path} cannot be read as word vectors: give a .npy file of numbers.") from None
    if found.shape != (vocabulary, embedding):
        raise UnalikeError(
            f"{path} has shape {list(found.shape)} and the model wants [{vocabulary}, {embedding}]: "
            "give vocabulary and embedding to match."
        )
    return torch.from_numpy(found.astype(np.float32))
