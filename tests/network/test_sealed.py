"""Rows that clients seal for each other, in a federation without a network: what passes, and what a server that looks,
changes, swaps or replays can do with it."""

import base64
import re

import pytest
import torch
from paths import ROOT
from small import refused, timeless
from test_network_messages import Direct, close, data, own, simulated, tables

from unalike.client.node import Node
from unalike.messages import wire
from unalike.messages.request import united
from unalike.methods import METHODS
from unalike.network import keys, server
from unalike.network.client import Client
from unalike.network.link import Lost
from unalike.network.policy import Policy

pytest.importorskip("cryptography")
from unalike.network.seal import Keyring

TOYS = ROOT / "unalike" / "testing" / "toys.py"
SERVERLESS = [name for name, method in METHODS.items() if method.serverless]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Keys of five clients (the last is a stranger), and the public ones of the first four in a folder of their own."""
    home = tmp_path_factory.mktemp("keys")
    (home / "peers").mkdir()
    for k in range(5):
        public = keys.make_node(home / f"site-{k}")
        if k < 4:
            (home / "peers" / public.name).write_bytes(public.read_bytes())
    return home


def public(folder, k):
    return (folder / f"site-{k}.pub").read_text()


def people(folder, home, peers=False, count=4, files=(TOYS,)):
    ring = [Keyring(folder / f"site-{k}", folder / "peers" if peers else None) for k in range(count)]
    rules = Policy.open(files=files, repeatable=True)
    return [Client(own(data(), k), home / f"site-{k}", rules, sealer=ring[k]) for k in range(count)]


def served(folder, link, method="Ring", said=None, given=None, rounds=2, **changes):
    """A run of a ring; given: another client's key in the place of some, by number."""
    public_keys = {f"site-{k}": public(folder, (given or {}).get(k, k)).encode() for k in range(4)}
    return server.run(
        settings(method, rounds, **changes), link, public_keys, classes=3, deadline=5.0,
        say=(said if said is not None else []).append,
    )  # fmt: skip


def settings(method="Ring", rounds=2, **changes):
    given = tables(rounds=rounds, **changes)
    return {**given, "method": {"name": method} if method in METHODS else {"file": f"{TOYS}:{method}"}}


class Watched(Direct):
    """Keeps all that passes, and may change what is sent down: `swap(client, header, parts)`."""

    def __init__(self, people, meddle=lambda client, header, answer: answer, swap=lambda client, header, parts: parts):
        super().__init__(people, meddle)
        self.swap, self.seen, self.parts = swap, [], {}

    def exchange(self, requests, seconds):
        changed = {}
        for k, parts in requests.items():
            header, _ = united(parts)
            changed[k] = self.swap(k, header, parts)
            self.parts[k, header["kind"], header.get("round"), header.get("exchange")] = changed[k]
            self.seen += changed[k]
        for k, answer in super().exchange(changed, seconds):
            self.seen.append(answer)
            yield k, answer


def state(person):
    (node,) = person._nodes.values()
    return node.state.read()[0]


def theta(person):
    return state(person)["theta"]


# ---------------------------------------------------------------- the same run


@pytest.mark.parametrize("method", ["Ring", "OpenRing", *SERVERLESS])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_federation_computes_what_a_simulation_does(method, dtype, folder, tmp_path):
    some, said = people(folder, tmp_path, peers=True), []
    real = served(folder, Watched(some), method, said, run={"dtype": dtype})
    simulation = simulated(settings(method, run={"dtype": dtype}))
    assert not said
    for k in range(4):
        kept = state(some[k])
        for name, value in simulation.clients[k].items():
            close(kept[name], value)
    for mine, yours in zip(timeless(real.history), timeless(simulation.history), strict=True):
        shared = [key for key in yours if not key.startswith("test_")]
        assert [mine[key] for key in shared] == pytest.approx([yours[key] for key in shared], rel=1e-5, abs=1e-6)
        assert mine["bytes_peer"] > 0


def test_nothing_of_the_keys_is_left_after_the_run(folder, tmp_path):
    some = people(folder, tmp_path)
    served(folder, Watched(some))
    assert not [file for file in tmp_path.rglob("pending*")]


def test_a_run_goes_on_where_it_was(folder, tmp_path):
    whole, parts = (people(folder, tmp_path / name) for name in ("whole", "parts"))
    served(folder, Watched(whole), rounds=3)
    kept = {"run": {"folder": str(tmp_path / "run")}}
    served(folder, Watched(parts), rounds=1, **kept)
    public_keys = {f"site-{k}": public(folder, k).encode() for k in range(4)}
    server.run(settings(rounds=3, **kept), Watched(parts), public_keys, classes=3, deadline=5.0, resume=True)
    for a, b in zip(whole, parts, strict=True):
        assert torch.equal(theta(a), theta(b))


# ---------------------------------------------------------------- who is lost


def lose(which):
    return lambda k, header, answer: Lost("it has left") if which(k, header) else answer


def test_a_receiver_whose_sender_is_lost_is_left_out(folder, tmp_path):
    """In round 1 site-2 does not answer: the one after it in the ring meets nobody, the others do."""
    meddle = lose(lambda k, h: (k, h["kind"], h.get("round"), h.get("exchange")) == (2, "request", 0, 0))
    some, said = people(folder, tmp_path), []
    run = served(folder, Watched(some, meddle), said=said, rounds=1)
    order = run.server.shuffled("ring", 4).tolist()
    after = order[(order.index(2) + 1) % 4]
    assert any(f"site-{after} is left out" in t and "was to send it 'theta' did not answer" in t for t in said)
    assert run.history[0]["lost"] == 2  # the sender, and the receiver, which was not asked
    assert run.history[0]["bytes_peer"] == 3 * 4 * len(theta(some[0]))


OWN = """
import torch
from unalike.testing.toys import Ring
from unalike.contract import Field, PerClient

class Own(Ring):
    serverless = False
    keeps = {"theta": Field(), "number": Field("scalar")}

    def meet(self, me, s, m):
        return {"number": m.number}, {}

    def round(self, server, cohort):
        sent = cohort.call(self.train)
        rows = {"theirs": sent.pass_on("theta", to=[1, 2, 3, 0]), "number": PerClient(torch.arange(4.0))}
        cohort.call(self.meet, **rows)
"""


@pytest.mark.parametrize("kind", ["request", "wrap"])
def test_rows_of_the_server_stay_with_their_receivers(kind, folder, tmp_path):
    """Site-1 sends nothing (or no key) to site-2: the others' own numbers, 0, 1 and 3, still reach them."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    some = people(folder, tmp_path, files=(file,))
    lost = lose(lambda k, h: (k, h["kind"], h.get("exchange", 0)) == (1, kind, 0))
    public_keys = {f"site-{k}": public(folder, k).encode() for k in range(4)}
    given = {**tables(rounds=1, run={"evaluate_clients": "none"}), "method": {"file": f"{file}:Own"}}
    server.run(given, Watched(some, lost), public_keys, classes=3, deadline=5.0)
    numbers = [state(person)["number"].item() for person in some]
    assert numbers == [0, 1, 0, 3]


def test_a_receiver_whose_sender_does_not_give_the_key_is_left_out(folder, tmp_path):
    some, said = people(folder, tmp_path), []
    run = served(folder, Watched(some, lose(lambda k, h: (k, h["kind"]) == (1, "wrap"))), said=said, rounds=1)
    order = run.server.shuffled("ring", 4).tolist()
    after = order[(order.index(1) + 1) % 4]
    assert any("site-1 is left out" in t for t in said)
    assert any(f"site-{after} is left out" in t and "did not give the key" in t for t in said)


def test_when_nobody_gives_a_key_the_round_still_ends(folder, tmp_path):
    some, said = people(folder, tmp_path), []
    served(folder, Watched(some, lose(lambda k, h: h["kind"] == "wrap")), said=said, rounds=1)
    assert sum("did not give the key" in t for t in said) == 4


# ---------------------------------------------------------------- a server that looks


def contains(link, person):
    """Whether a client's vector, as it was sent in the last round, is somewhere in what passed."""
    row = link.sent[person].numpy().tobytes()
    return any(row in part for part in link.seen if isinstance(part, bytes))


@pytest.mark.parametrize(("method", "visible"), [("OpenRing", True), ("Ring", False)])
def test_what_the_server_sees(method, visible, folder, tmp_path, monkeypatch):
    link = Watched(people(folder, tmp_path))
    link.sent = {}
    run = Node._run

    def watched(self, *args):
        kept, sent, loss = run(self, *args)
        if "theta" in sent:
            link.sent[self.client] = sent["theta"].clone()
        return kept, sent, loss

    monkeypatch.setattr(Node, "_run", watched)
    served(folder, link, method, rounds=1)
    assert [contains(link, k) for k in range(4)] == [visible] * 4


def test_the_key_itself_never_passes(folder, tmp_path, monkeypatch):
    made = []
    seal = Keyring.seal
    monkeypatch.setattr(Keyring, "seal", lambda self, row, about: made.append(seal(self, row, about)) or made[-1])
    link = Watched(people(folder, tmp_path))
    served(folder, link, rounds=1)
    assert len(made) == 4 and len({key for _, key in made}) == 4
    for row, key in made:
        assert any(row in part for part in link.seen) and not any(key in part for part in link.seen)


# ---------------------------------------------------------------- a server that meddles


def remade(parts, change):
    """The same request with its own part changed: change(header, tensors)."""
    header, tensors = wire.decode(parts[1])
    header.pop("format")
    change(header, tensors)
    return (parts[0], wire.encode(header, tensors))


def meeting(change, whom=0):
    def swap(k, header, parts):
        return remade(parts, change) if (k, header.get("function")) == (whom, "meet") else parts

    return swap


def flip(header, tensors):
    tensors["theirs"][20] ^= 1


def flip_key(header, tensors):
    text = header["sealed"]["theirs"]["wrapped"]
    header["sealed"]["theirs"]["wrapped"] = text[:-6] + ("A" if text[-6] != "A" else "B") + text[-5:]


def told(**facts):
    return lambda header, tensors: header["sealed"]["theirs"].update(facts)


def cut(header, tensors):
    tensors["theirs"] = tensors["theirs"][:5].clone()


def bare(header, tensors):
    tensors["theirs"] = torch.zeros(39)


def gone(header, tensors):
    del header["sealed"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flip, "the row 'theta' from client .* cannot be opened: it was changed on its way"),
        (flip_key, "cannot be opened"),
        (cut, "cannot be opened"),
        (bare, "sealed part 'theirs' is not made of bytes"),
        (gone, "brings 'theirs' in the clear: what clients send to each other is sealed"),
        (told(exchange=1), "cannot be opened"),
        (told(sender=9), "cannot be opened"),
        (told(field="other"), "cannot be opened"),
        (told(wrapped="?"), "a key that is no text of ours"),
        (told(wrapped="QUJD"), "cannot be opened"),
        (told(key="ssh-rsa AAAA"), "public key is not of `unalike keys node`"),
        (told(sender="0"), "says of a sealed row sender '0': it must be a whole number"),
        (told(more=1), "describes a sealed row as"),
        (lambda header, tensors: header.update(sealed={"other": 1}), "it has no such parts"),
    ],
)
def test_what_a_receiver_refuses(change, words, folder, tmp_path):
    said = []
    served(folder, Watched(people(folder, tmp_path), swap=meeting(change)), said=said, rounds=1)
    assert any("site-0 is left out" in text and re.search(words, text, re.IGNORECASE) for text in said), said


def test_a_row_for_another_client_cannot_be_opened(folder, tmp_path):
    """The server gives site-0 the row, and the wrapped key, that are for another."""
    link = Watched(people(folder, tmp_path))
    served(folder, link, rounds=1)
    mine, theirs = (link.parts[k, "request", 0, 1] for k in (0, 1))
    own_header, _ = wire.decode(mine[1])
    other, rows = wire.decode(theirs[1])
    answer = link.people[0].answer((mine[0], wire.encode({**own_header, "sealed": other["sealed"]}, rows)))
    assert "cannot be opened" in wire.decode(answer)[0]["reason"]


def test_a_row_of_an_earlier_round_cannot_be_opened(folder, tmp_path):
    kept = {}

    def swap(k, header, parts):
        if (k, header.get("function")) != (0, "meet"):
            return parts
        if header["round"] == 0:
            kept["own"] = wire.decode(parts[1])
            return parts

        def old(header, tensors):
            header["sealed"] = kept["own"][0]["sealed"]
            tensors.update(kept["own"][1])

        return remade(parts, old)

    said = []
    served(folder, Watched(people(folder, tmp_path), swap=swap), said=said)
    assert [text for text in said if "site-0 is left out" in text and "cannot be opened" in text]


def test_a_key_that_was_not_given_is_refused_where_peers_are_known(folder, tmp_path):
    """The server says that its own key (site-4's) is site-2's. Without --peers the sender believes it, and the server
    can read; with it neither the sender nor the receiver does."""
    stranger = Keyring(folder / "site-4")
    found = []

    def look(k, header, answer):
        if header["kind"] == "wrap":
            found.append((k, header, wire.decode(answer)[0]))
        return answer

    served(folder, Watched(people(folder, tmp_path / "believing"), look), given={2: 4}, rounds=1)
    ((k, asked, answer),) = [(k, h, a) for k, h, a in found if h["rows"][0]["receiver"] == 2]
    row = asked["rows"][0]
    about = {"run": asked["run"], "round": 0, "exchange": 0, "field": "theta", "sender": k}
    wrapped = base64.b64decode(answer["wrapped"][0])
    assert len(stranger.unwrap(wrapped, public(folder, k), {**about, "receiver": 2, "part": "theirs", "at": 1})) == 32
    assert row["key"] in public(folder, 4)

    found.clear()
    said = []
    served(folder, Watched(people(folder, tmp_path / "knowing", peers=True), look), given={2: 4}, said=said, rounds=1)
    assert any("names a key of another client that this client was not given (--peers)" in text for text in said)
    assert [a["kind"] for k, h, a in found if h["rows"][0]["receiver"] == 2] == ["error"]
    # the row that site-2 sent is refused by its receiver too, who is told the stranger's key
    assert sum("--peers" in text and "is left out" in text for text in said) >= 2


def test_a_server_cannot_make_a_row_up_where_peers_are_known(folder, tmp_path):
    """The server seals a row of its own for site-0 and says it is site-1's: it lacks site-1's private key."""
    forger, receiver = Keyring(folder / "site-4"), Keyring(folder / "site-0", folder / "peers")
    about = {"run": "r", "round": 0, "exchange": 0, "field": "theta", "sender": 1, "receiver": 0}
    wrapped = forger.wrap(b"k" * 32, public(folder, 0), about)
    with refused("cannot be opened"):
        receiver.unwrap(wrapped, public(folder, 1), about)
    with refused("was not given"):
        receiver.unwrap(wrapped, public(folder, 4), about)
    assert receiver.unwrap(
        Keyring(folder / "site-1").wrap(b"k" * 32, public(folder, 0), about), public(folder, 1), about
    )


# ---------------------------------------------------------------- what a sender refuses, and a server


def asked_to_wrap(person, **changes):
    (run,) = person._nodes
    row = {"field": "theta", "exchange": 0, "receiver": 1, "key": "x", "part": "theirs"}
    header = {"kind": "wrap", "run": run, "round": 0, "at": 1, "rows": [row]}
    header.update({k: v for k, v in changes.items() if k in header})
    row.update({k: v for k, v in changes.items() if k in row})
    return wire.decode(person.answer((wire.encode(header, {}),)))[0]["reason"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "has sealed no 'theta' in round 1"),  # the round is over: the key is gone
        ({"field": "other"}, "has sealed no 'other'"),
        ({"round": 7}, "has sealed no 'theta' in round 8"),
        ({"round": "0"}, "must be a whole number"),
        ({"at": None}, "must be a whole number"),
        ({"rows": []}, "must be a list of rows"),
        ({"rows": [1]}, "describes a sealed row as 1"),
        ({"exchange": -1}, "must be a whole number"),
        ({"key": 3}, "describes a sealed row as"),
    ],
)
def test_what_a_sender_refuses(changes, words, folder, tmp_path):
    some = people(folder, tmp_path)
    served(folder, Watched(some), rounds=1)
    assert words in asked_to_wrap(some[0], **changes)


def test_a_key_belongs_to_its_round(folder, tmp_path):
    """While round 1 is under way, a server asks for the key of a row of round 2."""
    some, said = people(folder, tmp_path), []

    def swap(k, header, parts):
        if header["kind"] == "wrap":
            said.append(asked_to_wrap(some[k], round=1, key=public(folder, 1)))
        return parts

    served(folder, Watched(some, swap=swap), rounds=1)
    assert said == ["This client has sealed no 'theta' in round 2."] * 4


def test_a_sealed_field_of_another_length_is_refused(folder, tmp_path):
    def meddle(k, header, answer):
        if (k, header.get("function")) != (1, "train"):
            return answer
        head, fields = wire.decode(answer)
        return wire.encode({k: v for k, v in head.items() if k != "format"}, {**fields, "theta": fields["theta"][1:]})

    said = []
    served(folder, Watched(people(folder, tmp_path), meddle), said=said, rounds=1)
    assert any("site-1 is left out" in text and "its 'theta' is not sealed as" in text for text in said)


@pytest.mark.parametrize("wrapped", [None, [], ["a", "b"], [1]])
def test_an_answer_that_is_no_key_is_refused(wrapped, folder, tmp_path):
    def meddle(k, header, answer):
        if (k, header["kind"]) != (1, "wrap"):
            return answer
        head = {k: v for k, v in wire.decode(answer)[0].items() if k != "format"}
        return wire.encode({**head, "wrapped": wrapped}, {})

    said = []
    served(folder, Watched(people(folder, tmp_path), meddle), said=said, rounds=1)
    assert any("site-1 is left out" in text and "is not the 1 keys" in text for text in said)


def test_a_row_that_is_not_finite_is_refused_by_its_receiver(folder, tmp_path, monkeypatch):
    run = Node._run

    def broken(self, *args):
        kept, sent, loss = run(self, *args)
        if self.client == 1 and "theta" in sent:
            sent["theta"] = sent["theta"] * float("nan")
        return kept, sent, loss

    monkeypatch.setattr(Node, "_run", broken)
    said = []
    served(folder, Watched(people(folder, tmp_path)), said=said, rounds=1)
    assert any("'theirs' has a value that is NaN or infinite" in text for text in said)


def test_a_client_without_a_key_says_so(folder, tmp_path):
    some = people(folder, tmp_path)
    some[2].sealer = None
    with refused("site-2: Ring seals 'theta' for other clients: this needs a key"):
        served(folder, Watched(some))


def test_keys_that_are_none(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.pub").write_text("hello")
    with refused("has no .pub file"):
        Keyring(folder / "site-0", tmp_path / "empty")
    with refused("not of `unalike keys node`"):
        Keyring(folder / "site-0", tmp_path / "bad")
    with refused("cannot be read"):
        Keyring(tmp_path / "none")


def test_a_row_is_sealed_anew_each_time(folder):
    one = Keyring(folder / "site-0")
    rows = {one.seal(b"abc", {"field": "f", "sender": 0})[0] for _ in range(3)}
    assert len(rows) == 3 and {len(row) for row in rows} == {3 + 28}
    row, key = one.seal(b"abc", {"field": "f", "sender": 0})
    assert one.open(row, key, {"field": "f", "sender": 0}) == b"abc"
    with refused("cannot be opened"):
        one.open(row, key, {"field": "f", "sender": 1})
