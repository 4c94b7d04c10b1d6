"""SecureBoost: Cheng et al., "SecureBoost: a lossless federated learning framework", IEEE Intelligent Systems 2021 (our
reading): gradient-boosted trees between a guest with the labels and hosts with other columns.

    guest → hosts    [g · 2^b + h] of every row                  under the guest's key, once a tree
    guest → hosts    which rows are in which node                once a level
    host → guest     [Σ g, Σ h] of one side of each candidate    unnamed, shuffled, packed, with fresh noise
    guest → a host   the best candidates' numbers                the host keeps which column and bin that is
    host → guest     which rows go left

An epoch is a tree (of more than two classes: one each). Derivatives are whole multiples of 2^-30, so the trees are
those of the joined table, bit for bit (`ua.trees.fit`), whatever the cipher: the guest knows a split at a host by a
number only. Of two children only the lighter one is summed, and of a column its commonest code never. Rows that a host
does not have count as missing and go where that helped; so does every row when a host is away at prediction.

What the parties learn. A host: which rows share a node, and left and right of its own splits. The guest: sums of
derivatives (so label shares) of unnamed candidates, and which rows go left at a host's split. `first_alone` grows the
first tree, which tells most, from the guest's columns alone. `cipher="ou"` (Okamoto-Uchiyama) takes half the time,
**but a host that sees what becomes of a ciphertext of its own making can find the key**: among parties that follow the
protocol only. `cipher="none"` is for experiments: hosts see derivatives, and so the labels.
"""

from __future__ import annotations

import dataclasses as dc
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from unalike.contract import Fields
from unalike.crypto import okamoto_uchiyama, paillier
from unalike.draws import generator
from unalike.errors import UnalikeError
from unalike.settings.knobs import knob
from unalike.trees import bins as cutting
from unalike.trees import exact
from unalike.trees.fit import drawn_columns, drawn_rows, start_margin
from unalike.trees.picture import Unit
from unalike.trees.settings import Boosting
from unalike.trees.table import Rows
from unalike.trees.tree import LEAF
from unalike.vertical.candidates import Candidate, Candidates
from unalike.vertical.exchange import Hosts, PerParty
from unalike.vertical.fields import Field, answer
from unalike.vertical.joint_tree import JointTree
from unalike.vertical.method import Me, Vertical
from unalike.vertical.pairs import Clear, Encrypted, Owned, Width
from unalike.vertical.tree_view import guest_view, host_view

CIPHERS = ("paillier", "ou", "none")
ORDER = 2  # bytes of a node's number in a message


@dc.dataclass(frozen=True)
class SecureBoost(Boosting, Vertical):
    cipher: str = knob("paillier", "of derivatives", choices=CIPHERS)
    bits: int = knob(2048, "length of the key", least=512, most=8192)
    randomness: str = knob("short", "Paillier's noise: short exponents, or the textbook's", choices=("short", "full"))
    first_alone: bool = knob(False, "the first tree is the guest's alone")
    top: float = knob(1.0, "share of the rows with the largest derivatives that a tree learns from", above=0, most=1)
    other: float = knob(0.1, "share of the others, drawn and weighed up, where top is below 1", above=0, most=1)

    name: ClassVar[str] = "secure-boost"
    keeps: ClassVar[tuple[str, ...]] = ("forest", "value", "gain", "cuts", "base", "count", "lookup")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience is not None:
            raise UnalikeError("SecureBoost looks at no validation rows: leave patience out, and choose epochs.")

    @property
    def sends(self) -> dict[str, Field]:  # type: ignore[override]
        sealed = self.cipher != "none"
        labels = "nothing without the guest's key" if sealed else "derivatives, and so the labels"
        side = "sums of derivatives, so label shares, of one side of unnamed candidates"
        plain: dict[str, Any] = {"to": "hosts", "kind": "bytes"}
        return {
            "key": Field((), **plain, tells="the guest's public key"),
            "pairs": Field(("rows", 2), to="hosts", sealed=sealed, kind="bytes", tells=labels),
            "settings": Field((), **plain, tells="how wide sums are, and which of its columns a tree may use"),
            "nodes": Field((), **plain, tells="which rows share a node"),
            "sums": Field((), sealed=sealed, kind="bytes", tells=side),
            "chosen": Field((), **plain, tells="which of its candidates divide a node best"),
            "left": Field((), kind="bytes", tells="which rows go left at its split, and where missing ones go"),
            "asked": Field((), **plain, tells="which rows come to which of its splits"),
            "ways": Field((), kind="bytes", tells="which of these rows go left"),
            "candidates": Field((), kind="index", tells="how many candidates its columns have"),
        }

    def under(self, protection: str, **more: Any) -> SecureBoost:
        """Return the method with another cipher; "none" asks for no other than its own."""
        if protection != "none" and protection not in CIPHERS:
            raise UnalikeError(f"SecureBoost has protection paillier or ou; got {protection!r}.")
        cipher: dict[str, Any] = {} if protection == "none" else {"cipher": protection}
        return dc.replace(self, **more, **cipher)

    # ---- every party

    def start(self, me: Me) -> None:
        shape = self.trees, me.outputs, 2 << self.depth
        me.cuts, me.count = torch.zeros(me.columns, self.bins - 1), torch.zeros(1, dtype=torch.int64)
        me.coded = None
        if me.is_guest:
            me.forest = torch.full((4, *shape), LEAF)  # party, column or record, bin, whether missing goes left
            me.value, me.gain, me.base = (torch.zeros(size).double() for size in (shape, shape, 1))
            me.margin = None
        else:
            me.lookup = torch.zeros(self.trees * me.outputs << self.depth, 3, dtype=torch.int64)

    def coded(self, me: Me) -> Tensor:
        """Return the codes of a party's rows; of rows that it does not have, missing values."""
        if me.coded is None or me.coded[0] is not me.x:
            plain = torch.zeros(me.columns, dtype=torch.bool)
            own = cutting.codes(me.x, me.cuts, plain)
            me.coded = me.x, torch.where(me.present[:, None], own, self.bins).to(torch.uint8)
        found: Tensor = me.coded[1]
        return found

    def learn_cuts(self, me: Me, rows: Tensor) -> None:
        """Find the cuts of a party's columns: quantiles over the training rows that it has."""
        if not me.count:
            x = torch.where(me.present[rows][:, None], me.x[rows].float(), torch.nan)
            me.cuts, me.coded = cutting.pooled_cuts(x, self.bins), None

    def view(self, me: Me, names: Sequence[str], features: Sequence[str], unit: Unit) -> dict[str, Any]:
        return guest_view(me, names, features, unit) if me.is_guest else host_view(me, features)

    # ---- a host

    @answer("key")
    def take_key(self, me: Me, m: Fields) -> None:
        me.pairs = opened_key(self.cipher, m.key.numpy().tobytes(), self.bits, self.randomness)

    @answer("rows", gives="candidates")
    def prepare(self, me: Me, m: Fields) -> dict[str, Tensor]:
        self.learn_cuts(me, m.rows)
        return {"candidates": torch.tensor(me.columns)}

    @answer("rows pairs settings", gives="candidates")
    def take(self, me: Me, m: Fields) -> dict[str, Tensor]:
        low, slot, number, *allowed = m.settings.view(torch.int64).tolist()
        if len(allowed) != me.columns:
            raise UnalikeError(f"the guest speaks of {len(allowed)} columns of {me.name}, which has {me.columns}.")
        me.width, me.rows = Width(low, slot), m.rows
        me.values = me.pairs.read(m.pairs.numpy().tobytes(), len(m.rows))
        codes = self.coded(me)[m.rows].numpy()
        me.candidates = Candidates(codes, self.bins, np.array(allowed, bool))
        me.count = torch.tensor([number])
        return {"candidates": torch.tensor(len(me.candidates))}

    @answer("nodes", gives="sums")
    def sum(self, me: Me, m: Fields) -> dict[str, Tensor]:
        node = numbers(m.nodes, len(me.rows))
        rows = [np.flatnonzero(node == k) for k in range(int(node.max()) + 1)]
        found = [me.candidates.sums(own, me.values, me.pairs.one, me.pairs.add) for own in rows]
        return {"sums": as_bytes(me.pairs.packed(found, me.width))}

    @answer("nodes chosen", gives="left")
    def split(self, me: Me, m: Fields) -> dict[str, Tensor]:
        node, table = numbers(m.nodes, len(me.rows)), m.chosen.view(torch.int64).reshape(-1, 5)
        left, lacking = np.full(len(node), 2, np.uint8), []
        for number in table[:, 0].unique().tolist():
            candidate, missing_left = first_of(me.candidates, table[table[:, 0] == number])
            sides = me.candidates.left(candidate)
            sides[self.bins] = missing_left
            inside = node == number
            left[inside] = sides[me.candidates.codes[inside, candidate.column]]
            record = torch.tensor([candidate.column, candidate.bin, missing_left])
            me.lookup[int(me.count)] = record
            me.count = me.count + 1
            lacking.append(missing_left)
        return {"left": as_bytes(np.concatenate([left, np.array(lacking, np.uint8)]).tobytes())}

    @answer("rows asked", gives="ways")
    def way(self, me: Me, m: Fields) -> dict[str, Tensor]:
        record = m.asked.view(torch.int32).reshape(len(m.rows), -1).to(torch.int64)
        if int(record.max()) >= len(me.lookup) or int(record.min()) < -1:
            raise UnalikeError("the guest asked for a split that is not there.")
        column, bin, missing_left = me.lookup[record.clamp(min=0)].unbind(-1)
        code = self.coded(me)[m.rows].gather(1, column).to(torch.int64)
        left = torch.where(code == self.bins, missing_left.bool(), code <= bin)
        return {"ways": as_bytes(torch.where(record < 0, 2, left.to(torch.int64)).to(torch.uint8).numpy().tobytes())}

    # ---- the guest

    def begin(self, guest: Me, hosts: Hosts) -> None:
        guest.margin = None
        if len(hosts):
            guest.pairs = made_key(self.cipher, self.bits, self.randomness)
            hosts.call(self.take_key, key=as_bytes(public(guest.pairs)))

    def step(self, guest: Me, hosts: Hosts, rows: Tensor) -> float | None:
        if int(guest.count) >= self.trees:
            return None
        classes = classes_of(guest)
        y = guest.y[rows].float().double() if classes is None else guest.y[rows]
        if guest.margin is None:
            self.first(guest, hosts, rows, y, classes)
        number = int(guest.count)
        pair = exact.derivatives(guest.margin, y, classes)
        chosen, pair = self.sample(guest, number, pair)
        for output in range(guest.outputs):
            self.grow(guest, hosts, rows, chosen, pair[:, output], output)
        guest.count = guest.count + 1
        guest.margin = guest.margin + self.added(guest, hosts, rows, [number])[:, 0]
        loss = exact.losses(guest.margin, y, classes)
        return float(loss.double().mean()) / exact.SCALE

    def first(self, guest: Me, hosts: Hosts, rows: Tensor, y: Tensor, classes: int | None) -> None:
        """Find cuts, and where margins stand: at the beginning, or where a continued run left them."""
        self.learn_cuts(guest, rows)
        if not guest.count:
            total = int(exact.fixed(y.double()).sum())
            guest.base = torch.tensor([start_margin(self, classes, total, len(y))], dtype=torch.float64)
            if len(hosts):
                hosts.call(self.prepare, rows=rows)
        guest.margin = self.scores(guest, hosts, rows)

    def sample(self, guest: Me, number: int, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows that a tree learns from, and their derivatives: those of small ones weighed up (GOSS)."""
        drawn = drawn_rows(self, guest.seed, number, len(pair))
        keep = torch.ones(len(pair), dtype=torch.bool) if drawn is None else drawn.bool()
        if self.top < 1:
            size = pair[..., 0].abs().sum(1)
            order = torch.argsort(-size, stable=True)
            first = round(self.top * len(order))
            shuffled = generator(guest.seed, number, "goss").permutation(len(order) - first)
            rest = order[first:][torch.from_numpy(shuffled)]
            some = rest[: max(1, round(self.other * len(rest)))]
            weight = torch.zeros(len(pair), dtype=torch.float64)
            weight[order[:first]], weight[some] = 1.0, len(rest) / max(1, len(some))
            keep = keep & (weight > 0)
            pair = torch.round(pair.double() * weight[:, None, None]).to(torch.int64)
        chosen = torch.nonzero(keep).flatten()
        return chosen, pair[chosen]

    def grow(self, guest: Me, hosts: Hosts, rows: Tensor, chosen: Tensor, pair: Tensor, output: int) -> None:
        """Grow one tree, and write it into the forest."""
        number = int(guest.count)
        with_hosts = hosts if not (self.first_alone and number == 0) and len(hosts) else None
        columns = [guest.columns, *(hosts.columns[name] for name in hosts.names)]
        allowed = drawn_columns(self, guest.seed, number, sum(columns)).split(columns)
        own = Rows(self.coded(guest)[rows[chosen]], self.bins, torch.zeros(guest.columns, dtype=torch.bool))
        own.begin(pair)
        tree = JointTree(self, own, pair, allowed[0])
        if with_hosts is not None:
            self.hand_out(guest, hosts, rows[chosen], pair, allowed[1:], tree)
        while len(tree.asked):
            sums = [] if with_hosts is None else self.summed(guest, hosts, tree)
            for which, wanted in tree.take(sums).items():
                self.ask_host(guest, hosts, which, wanted, tree)
            tree.close()
        guest.forest[:, number, output] = tree.forest
        guest.value[number, output] = torch.from_numpy(tree.tree.value)
        guest.gain[number, output] = torch.from_numpy(tree.tree.gain)

    def hand_out(
        self, guest: Me, hosts: Hosts, rows: Tensor, pair: Tensor, allowed: tuple[Tensor, ...], tree: JointTree
    ) -> None:
        """Send the derivatives of a tree, sealed."""
        tree.width = Width.of(len(rows), largest(pair))
        guest.pairs.prepare(len(rows))  # both cores make the noise of the first tree
        sealed = as_bytes(guest.pairs.seal(pair, tree.width))
        guest.pairs.prepare(0 if int(guest.count) + 1 == self.trees and guest.outputs == 1 else len(rows))
        told = [[tree.width.low, tree.width.slot, *own.tolist()] for own in allowed]
        given = [torch.tensor([a[0], a[1], tree.records(k, guest), *a[2:]]) for k, a in enumerate(told, 1)]
        settings = PerParty([own.view(torch.uint8) for own in given])
        replies = hosts.call(self.take, rows=rows, pairs=sealed, settings=settings)
        tree.candidates = [int(count) for count in replies.each("candidates")]

    def summed(self, guest: Me, hosts: Hosts, tree: JointTree) -> list[Tensor]:
        """Return every host's sums of the nodes asked for, [nodes, candidates, 2]."""
        replies = hosts.call(self.sum, nodes=as_bytes(tree.members(tree.asked)))
        count = len(tree.asked)
        parts = zip(replies.each("sums"), tree.candidates, strict=True)
        return [guest.pairs.opened(p.numpy().tobytes(), count, own, tree.width) for p, own in parts]

    def ask_host(self, guest: Me, hosts: Hosts, which: int, wanted: dict[int, Tensor], tree: JointTree) -> None:
        """Have a host divide the nodes in which it won."""
        places = np.array(sorted(wanted))
        chosen = torch.cat([wanted[place] for place in places.tolist()])
        call = hosts.only(which - 1).call(
            self.split, nodes=as_bytes(tree.members(places)), chosen=chosen.contiguous().view(torch.uint8).flatten()
        )
        answer = call.each("left")[0].numpy()
        if len(answer) != len(tree.rows.place) + len(places):
            raise UnalikeError(f"{hosts.names[which - 1]} divided another number of rows than it was asked to.")
        tree.divided_by(which, places, answer)

    def scores(self, guest: Me, hosts: Hosts, rows: Tensor) -> Tensor:
        trees = range(int(guest.count))
        total = guest.base.expand(len(rows), guest.outputs).clone()
        if len(trees):
            parts = self.added(guest, hosts, rows, trees)
            for number in trees:
                total = total + parts[:, number]
        return total

    def added(self, guest: Me, hosts: Hosts, rows: Tensor, trees: Any) -> Tensor:
        """Return what trees add to the margins of rows, [rows, trees, outputs], asking each host as rows come to it."""
        picked = torch.tensor(list(trees))
        party, record, bin, missing_left = guest.forest[:, picked].flatten(1, 2)  # [trees × outputs, places]
        codes, place = self.coded(guest)[rows].to(torch.int64), torch.ones(len(rows), len(party), dtype=torch.int64)
        for _ in range(self.depth):
            here = [part.T.gather(0, place) for part in (party, record, bin, missing_left)]
            left = codes.gather(1, here[1].clamp(0, guest.columns - 1)) <= here[2]
            for which, name in enumerate(hosts.names, 1):
                mine = here[0] == which
                if name in hosts.away:
                    left = torch.where(mine, here[3] == 1, left)
                elif bool(mine.any()):
                    left = torch.where(mine, self.asked_ways(hosts, which, rows, here[1], mine), left)
            place = torch.where(here[0] == LEAF, place, 2 * place + (~left).to(torch.int64))
        values = guest.value[picked].flatten(0, 1).T.gather(0, place)
        return values.reshape(len(rows), len(picked), guest.outputs)

    def asked_ways(self, hosts: Hosts, which: int, rows: Tensor, record: Tensor, mine: Tensor) -> Tensor:
        """Return which way rows go at a host's splits."""
        asked = torch.where(mine, record, -1).to(torch.int32).contiguous().view(torch.uint8).flatten()
        ways = hosts.only(which - 1).call(self.way, rows=rows, asked=asked).each("ways")[0]
        if len(ways) != mine.numel():
            raise UnalikeError(f"{hosts.names[which - 1]} told the ways of another number of rows.")
        return ways.reshape(mine.shape) == 1


def importance(me: Me, names: list[str]) -> dict[str, float]:
    """Return the share of all gain by party: all that the guest may know of hosts' splits; names: the guest's first."""
    party, gain = me.forest[0].flatten(), me.gain.flatten()
    total = [float(gain[party == k].sum()) for k in range(len(names))]
    return {name: value / (sum(total) or 1.0) for name, value in zip(names, total, strict=True)}


def first_of(candidates: Candidates, tied: Tensor) -> tuple[Candidate, bool]:
    """Return the first of several candidates that gain the same, and whether missing values go left with it.

    tied: rows of (node, candidate's number, number of its side's sums, number of the other side's, 1 if its side is
    the heavier + 2 if the other is); equal sums have equal numbers.
    """
    lefts, first = {}, len(candidates)
    for _, number, side, rest, heavy in tied.tolist():
        place, candidate = candidates.at(number)
        own = candidates.sends_left(candidate)
        lefts[candidate] = side if own else rest, bool(heavy & (1 if own else 2))
        first = min(first, place)
    chosen = candidates.lists[first]
    sums, heavier = lefts[chosen]
    twin = lefts.get(chosen._replace(way=1), (None, False))[0] == sums
    if chosen.way == 0 and (twin or not candidates.lacking[chosen.column]):
        return chosen, heavier
    return chosen, chosen.way == 1


def classes_of(me: Me) -> int | None:
    """Return how many classes there are, None for a number."""
    return {"number": None, "binary": 2}.get(me.loss.task, me.outputs)


def largest(pair: Tensor) -> int:
    """Return a bound of the derivatives that tells little of them: a power of 256, at least that of classes."""
    most = max(int(pair.abs().max()), exact.SCALE)
    return 1 << -(-(most - 1).bit_length() // 8) * 8 if most > exact.SCALE else exact.SCALE


def numbers(data: Tensor, count: int) -> np.ndarray:
    """Read the numbers of the rows' nodes."""
    if len(data) != ORDER * count:
        raise UnalikeError(f"the guest told the nodes of {len(data) // ORDER} rows; there are {count}.")
    return np.frombuffer(data.numpy().tobytes(), np.int16)


def as_bytes(data: bytes) -> Tensor:
    """Return bytes as a field holds them."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def made_key(cipher: str, bits: int, randomness: str) -> Any:
    """Return the guest's end of a cipher, with a new key."""
    if cipher == "none":
        return Clear()
    if cipher == "ou":
        return Encrypted(okamoto_uchiyama.generate(bits))
    return Owned(paillier.generate(bits, randomness))


def opened_key(cipher: str, data: bytes, bits: int, randomness: str) -> Any:
    """Return a host's end of a cipher."""
    if cipher == "none":
        return Clear()
    if cipher == "ou":
        return Encrypted(okamoto_uchiyama.PublicKey.from_bytes(data, bits))
    return Encrypted(paillier.PublicKey.from_bytes(data, bits, randomness))


def public(pairs: Any) -> bytes:
    """Return the key that hosts get; nothing where there is none."""
    return b"" if isinstance(pairs, Clear) else pairs.key.to_bytes()
