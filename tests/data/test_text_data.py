"""Tweets as words and plays as characters, on texts short enough to check by eye; then through a model."""

import gzip

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unalike as ua
from unalike.data import text
from unalike.errors import UnalikeError


def says(*pieces):
    """The call raises one line that has all these pieces in this order."""
    return pytest.raises(UnalikeError, match=r"^[^\n]*" + "[^\n]*".join(pieces) + r"[^\n]*$")


# ---- words


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("Don't panic!", ["don", "'", "t", "panic", "!"]),
        ('He said "no", (twice).', ["he", "said", "no", ",", "(", "twice", ")", "."]),
        ("a;b:c<br />d  e\tf?", ["a", "b", "c", "d", "e", "f", "?"]),
        ("@you #tag http://x.y/z-1", ["@you", "#tag", "http", "//x", ".", "y/z-1"]),
        ("", []),
    ],
)
def test_basic_english(line, tokens):
    """By hand, from torchtext's rules: ' . , ( ) ! ? stand alone; " vanishes; ; : and <br /> become spaces."""
    assert text.basic_english(line) == tokens


def test_the_vocabulary_is_the_commonest_words_and_ties_go_by_the_alphabet():
    texts = [["b", "a", "c"], ["c", "b", "d"], ["c"]]
    assert text.vocabulary(texts, 3) == ["c", "b", "a"]
    assert text.vocabulary(texts[::-1], 3) == ["c", "b", "a"]
    assert text.vocabulary(texts, 100) == ["c", "b", "a", "d"]
    with says("size is 0"):
        text.vocabulary(texts, 0)


def test_word_tokens():
    texts = [["c", "x", "a"], [], ["a", "b", "c", "a", "b"]]
    tokens = text.word_tokens(texts, ["c", "b", "a"], length=4)
    assert tokens.tolist() == [[0, 2, 1, 4], [0, 0, 0, 0], [4, 3, 2, 4]] and tokens.dtype == np.int16
    assert text.word_tokens(texts, [str(i) for i in range(40_000)], 2).dtype == np.int32
    with says("length of a text is 0"):
        text.word_tokens(texts, [], 0)


def test_glove(tmp_path):
    content = b"the 0.5 -1 2\nof 1 1 1\n. 0 0.25 3\n"
    for name, pack in (("g.txt", bytes), ("g.txt.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(content))
        matrix = text.load_glove(tmp_path / name, [".", "absent", "the"])
        assert matrix.tolist() == [[0] * 3, [0] * 3, [0, 0.25, 3], [0] * 3, [0.5, -1, 2]]
        assert matrix.dtype == np.float32
    for bad, why in [(b"the 1 2\nof 1\n", "line 2 has 1 numbers"), (b"", "no vectors"), (b"the 1 x\n", "g.txt")]:
        (tmp_path / "g.txt").write_bytes(bad)
        with says(why):
            text.load_glove(tmp_path / "g.txt", ["of", "the"])


# ---- plays

GUTENBERG = """HAMLET, PRINCE OF DENMARK

by William Shakespeare

PERSONS REPRESENTED.

Claudius, King of Denmark.
Hamlet, Son to the former.

ACT I.

Scene I. Elsinore.

[Francisco at his post. Enter to him
Bernardo.]

Ber.
Who's there?

Fran.
Nay, answer me: stand,
and unfold yourself. [Aside.]

Ber.
Long live the king!

[Exit.]

And now, Laertes.

Farewell.
Come again.

Fran.
He.

Cor. and Volt.
In that we will show our duty.

Cor. and Volt.
Aye.
"""
DREAM = (
    "ACT I\n\nTHESEUS\nNow, fair Hippolyta,\nour nuptial hour\n\n[Enter EGEUS.]\n\nHIPPOLYTA\nFour days.\n\nII\nSong\n"
)
TINY = "First Citizen:\nBefore we proceed:\n\nAll:\nSpeak, speak.\n\nFirst Citizen:\nYou are resolved\nto die.\n"


def test_speakers_of_a_gutenberg_play(tmp_path):
    (tmp_path / "hamlet_gut.txt").write_text(GUTENBERG)
    speakers = text.read_speakers(tmp_path / "hamlet_gut.txt")
    assert speakers == {
        "Ber": "Who's there?\nLong live the king!\nAnd now, Laertes.\nFarewell.\nCome again.",
        "Fran": "Nay, answer me: stand,\nand unfold yourself.\nHe.",
        "Cor. and Volt": "In that we will show our duty.\nAye.",
    }


def test_speakers_of_a_folder(tmp_path):
    (tmp_path / "dream_gut.txt").write_text(DREAM)
    (tmp_path / "dream_gut_f.txt").write_text(DREAM)  # the folio, left out
    (tmp_path / "sonnets_gut.txt").write_text("THE SONNETS\nby William\n\nI\n\nFrom fairest creatures\nwe desire\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "tiny.txt").write_bytes(b"\xef\xbb\xbf" + TINY.replace("\n", "\r\n").encode())
    assert text.read_speakers(tmp_path) == {
        "dream: THESEUS": "Now, fair Hippolyta,\nour nuptial hour",
        "dream: HIPPOLYTA": "Four days.\nII\nSong",
        "tiny: First Citizen": "Before we proceed:\nYou are resolved\nto die.",
        "tiny: All": "Speak, speak.",
    }


def test_what_is_no_play(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00 no play at all")
    with says("a.txt", "no lines with a speaker's name"):
        text.read_speakers(tmp_path / "a.txt")
    with says("holds no plays"):
        text.read_speakers(tmp_path)
    with says("missing does not exist"):
        text.read_speakers(tmp_path / "missing")


def test_the_eighty_characters():
    assert len(text.CHARACTERS) == len(set(text.CHARACTERS)) == 80
    tokens = text.character_tokens("\n !}é€az")
    assert tokens.tolist() == [0, 1, 2, 79, 1, 1, 53, 78] and tokens.dtype == np.int8
    assert "".join(text.CHARACTERS[t] for t in text.character_tokens(text.CHARACTERS)) == text.CHARACTERS


def test_windows():
    x, y = text.windows(np.arange(7, dtype=np.int8), length=3, stride=2)
    assert x.tolist() == [[0, 1, 2], [2, 3, 4]] and y.tolist() == [3, 5] and y.dtype == np.int64
    assert text.windows(np.arange(3), length=3)[0].shape == (0, 3)
    for wrong in ({"length": 0}, {"stride": 0}):
        with says("must be 1 or more"):
            text.windows(np.arange(5), **wrong)


@given(st.integers(0, 300), st.floats(0.0, 0.9), st.integers(1, 12), st.integers(1, 9))
def test_no_test_window_has_a_character_of_a_training_window(size, test, length, stride):
    """Characters are told apart by giving each its own place in place of its token."""
    places = "".join(chr(0x4E00 + i) for i in range(size))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "character_tokens", lambda s: np.array([ord(c) for c in s], np.int64))
        try:
            read = text.speaker_windows({"one": places, "none": ""}, test, length, stride)
        except UnalikeError as error:
            assert "None of 2 speakers" in str(error)
            return
    train, held_out = ({*read[f"x_{p}"].ravel(), *read[f"y_{p}"]} for p in ("train", "test"))
    assert not train & held_out and len(train)
    assert len(held_out) or test == 0
    assert set(read["speaker_train"]) == {"one"} and len(read["speaker_test"]) == len(read["y_test"])


def test_speaker_windows():
    read = text.speaker_windows({"a": "abcdefghij" * 2, "short": "abc", "b": "0123456789" * 2}, 0.3, length=4, stride=3)
    # 20 characters: 14 to train on (windows at 0, 3, 6, 9), 6 to test on (at 0).
    assert read["speaker_train"].tolist() == ["a"] * 4 + ["b"] * 4 and read["speaker_test"].tolist() == ["a", "b"]
    assert "".join(text.CHARACTERS[t] for t in read["x_train"][1]) == "defg"
    assert text.CHARACTERS[read["y_train"][1]] == "h"
    assert "".join(text.CHARACTERS[t] for t in read["x_test"][1]) == "4567"
    with says("None of 1 speakers has text enough", "the longest 3 characters"):
        text.speaker_windows({"a": "abc"})
    with says("test=1.0 must be a fraction"):
        text.speaker_windows({"a": "abc"}, 1.0)


def test_leaf_characters():
    x, y = text.leaf_characters(["ab", "c "], ["!", "\n"])
    assert x.tolist() == [[53, 54], [55, 1]] and y.tolist() == [2, 0]
    for wrong in ((["ab", "c"], ["x", "y"]), (["ab"], ["xy"]), (["ab"], [])):
        with says("LEAF's Shakespeare has texts of one length"):
            text.leaf_characters(*wrong)


def test_tokens_go_through_a_model_on_every_engine():
    """int8 tokens as they are; bytes without a sign would be refused as raw images."""
    speakers = {"a": "To be, or not to be, " * 8, "b": "that is the question: " * 8}
    read = text.speaker_windows(speakers, 0.2, length=12, stride=5)
    own = [read["speaker_train"] == name for name in speakers]
    parts = [(read["x_train"][rows], read["y_train"][rows]) for rows in own]
    fed = ua.Federation.from_arrays(parts, test=(read["x_test"], read["y_test"]), classes=80)
    losses = []
    for engine in ("sequential", "batched", "loopback"):
        torch.manual_seed(0)
        model = ua.models.text.CharLSTM(hidden=8)
        local = ua.LocalTraining(steps=4, batch_size=5, lr=0.5)
        run = ua.simulate(model, fed, ua.FedAvg(), rounds=1, local=local, engine=engine, seed=0)
        losses.append(run.history[-1]["test_loss"])
    assert np.allclose(losses, losses[0], rtol=1e-5) and losses[0] < np.log(80)
