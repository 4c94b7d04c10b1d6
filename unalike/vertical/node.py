"""A party at its own place: it answers the guest's requests with its own columns, which never leave.

The same object answers in a simulation, through bytes (`loopback`), and over TLS. It runs no code that it is sent:
requests name functions of methods that it has itself, and every field is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import unalike
from unalike.contract import Fields
from unalike.data.preparation import Preparation
from unalike.data.schema import Schema
from unalike.draws import KeyedDraws, SecretDraws, key
from unalike.errors import UnalikeError
from unalike.files import replace
from unalike.messages import wire
from unalike.text import listed
from unalike.trees.picture import FILE
from unalike.vertical import psi, sums
from unalike.vertical.fields import check, check_rows, function_of
from unalike.vertical.method import Me, Vertical, built, kept, put_back
from unalike.vertical.noise import Noise
from unalike.vertical.tables import WIDE, Table, identifying, prepared

GUEST = "the guest"
MOST_COLUMNS = 100_000
ABOUT = (
    "method",
    "settings",
    "outputs",
    "scale",
    "index",
    "parties",
    "flags",
    "target",
    "task",
    "secure_sum",
)  # facts of a run, kept with a share
# prefix of a host's name, in the file of an alignment
MATCHED = "matched."
# checkpoints kept: the guest may have stopped before it wrote its own
KEPT = 2
Parts = tuple[dict[str, Any], dict[str, Tensor]]


class Node:
    """One party. table: its rows, None for a coordinator. folder: where it keeps its part of the model. psi_key:
    fixed in a simulation, so that it repeats. methods: those it is willing to take part in; least_bits: shortest key
    it accepts. secret: noise comes from the operating system, as it must between machines. reader: reads the table
    again, with another schema. tell: called with what the guest asks for, for this party's owner. sums_only: it
    takes part only if the guest reads sums over hosts and no single host's numbers; signer: its key, by which other
    hosts know it."""

    def __init__(
        self,
        table: Table | None,
        name: str = "",
        folder: Path | None = None,
        psi_key: bytes | None = None,
        methods: Sequence[str] | None = None,
        secret: bool = False,
        least_bits: int = 0,
        reader: Callable[[Schema], Table] | None = None,
        tell: Callable[[str], None] = lambda text: None,
        sums_only: bool = False,
        signer: sums.Signer | None = None,
    ):
        self.table, self.name, self.folder = table, table.name if table else name, folder
        self.role = "host" if table is not None else "coordinator"
        self.methods, self.secret, self._psi_key = methods, secret, psi_key
        self._least_bits, self._reader, self._tell = least_bits, reader, tell
        self._sums_only, self._signer = sums_only, signer
        self._masks: sums.Masks | None = None  # set if the guest reads only sums over hosts
        self._side: psi.Side | None = None
        # for each aligned row, its position in the table; -1 if it has none
        self.positions: Tensor | None = None
        # the name of the alignment, common to all parties of a run
        self.alignment = ""
        # at the guest: for each host, which aligned rows it has
        self.matched: dict[str, Tensor] = {}
        self.me: Me | None = None
        self.method: Vertical | None = None
        self.preparation: Preparation | None = None
        self.noise = Noise()
        self.about: dict[str, Any] = {}
        self.others: list[str] = []  # at the guest: the hosts' names

    # ---- requests

    def answer(self, data: bytes) -> bytes:
        """Answer a request as bytes; a request that cannot be answered becomes one line for the guest."""
        try:
            return wire.encode(*self.handle(*wire.decode(data)))
        except UnalikeError as error:
            self._tell(f"refused: {error}")
            return wire.encode({"kind": "error", "reason": str(error)}, {})
        # a fault of ours must not end the party; shown to its owner only, because it may quote data
        except Exception as error:
            self._tell(traceback.format_exc())
            reason = f"a fault inside {self.name}, {type(error).__name__}: its own log has more."
            return wire.encode({"kind": "error", "reason": reason}, {})

    def handle(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        """Answer a request."""
        kinds = {
            "hello": self._hello, "agree": self._agree, "points": self._points, "mask": self._mask,
            "align": self._align, "alignment": self._alignment, "setup": self._setup, "adopt": self._adopt,
            "introductions": self._introductions, "call": self._call, "save": self._save, "restore": self._restore,
            "done": self._done,
        }  # fmt: skip
        kind = header.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            raise UnalikeError(f"{GUEST} asked for {str(kind)[:60]!r}, which no party answers.")
        return kinds[kind](header, tensors)

    def _hello(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        if header.get("version") != unalike.__version__:
            raise UnalikeError(
                f"the guest runs unalike {str(header.get('version'))[:30]}, {self.name} {unalike.__version__}."
            )
        columns = self.table.columns if self.table else []
        about = {"name": self.name, "role": self.role, "columns": columns, "rows": len(self.table or ())}
        return {"kind": "hello", **about, "aligned": self.positions is not None}, {}

    def _agree(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        """Say, before ids are compared, whether this party takes part in such a run."""
        self._check_sums(self._agreed(header), header.get("secure_sum") is True)
        return {"kind": "agreed"}, {}

    def _points(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        if self.table is None:
            raise UnalikeError(f"{self.name} has no ids to match.")
        self._warn(header.get("columns"))
        self._side = psi.Side(self.table.ids, self._psi_key)
        return {"kind": "points"}, {"points": self._side.once}

    def _warn(self, columns: Any) -> None:
        """Warn, before ids are compared, how far columns that the guest has too identify this party's people."""
        assert self.table is not None
        shared = [c for c in self.table.columns if isinstance(columns, list) and c in columns]
        share = identifying(self.table, shared) if shared else 0.0
        if share > WIDE:
            self._tell(f"{listed(shared)}, which the guest has too, tell {share:.0%} of this party's people apart")

    def _mask(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        if self._side is None:
            raise UnalikeError(f"{GUEST} sent points before it asked for any.")
        return {"kind": "masked"}, {"points": self._side.twice(_only(tensors, "points"), GUEST)}

    def _align(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        places = _only(tensors, "places")
        if self._side is None or self.table is None:
            raise UnalikeError(f"{GUEST} told of matches before ids were compared.")
        if places.dtype != torch.int64 or places.dim() != 1 or len(places) > psi.MOST:
            raise UnalikeError(f"{GUEST} sent places that are no list of whole numbers.")
        there = places[places >= 0]
        within = not len(places) or (int(places.min()) >= -1 and int(places.max()) < len(self.table))
        if not within or len(there.unique()) < len(there):
            raise UnalikeError(f"{GUEST} sent places that are not those of different rows.")
        order = torch.from_numpy(self._side.order)
        self.positions = torch.where(places >= 0, order[places.clamp(min=0)], -1)
        self.alignment = str(header.get("alignment", ""))[:64]
        self.keep_alignment()
        self._tell(f"the guest matched {len(there):,} of this party's {len(self.table):,} people")
        return {"kind": "aligned", "matched": len(there)}, {}

    def _setup(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        """Prepare for a run: the method, and this party's rows, prepared by its own training rows."""
        self.method = self._agreed(header)
        limits = (("outputs", 10_000), ("seed", 1 << 63), ("index", 10_000), ("parties", 10_000))
        outputs, seed, index, parties = (_whole(header, name, most) for name, most in limits)
        self.noise = Noise.of(header)
        self.about = {name: header.get(name) for name in ABOUT}
        if self.table is None:
            self.me = Me(self.name, self.role, torch.zeros(0, 0), outputs, seed)
        else:
            x, present = self._aligned(_only(tensors, "train"), str(header.get("scale")), header.get("uses"))
            self.me = Me(self.name, self.role, x, outputs, seed, present, index, parties)
            self.me.training[tensors["train"]] = True
        self.method.start(self.me)
        introduction = self.ready_for_sums()
        self._tell(f"the guest runs {self.method.name}; this party sends {', '.join(self._sent())}")
        return {"kind": "ready", "columns": self.me.columns, **introduction}, {}

    def _sent(self) -> list[str]:
        """Return what this party sends, in which form, and what it reveals."""
        assert self.method is not None
        secure, own = self.about.get("secure_sum"), [(n, f) for n, f in self.method.sends.items() if f.to == "guest"]
        forms = {
            n: ("only in a sum", f.sum_tells) if secure and sums.is_summed(f) else (f.form, f.tells) for n, f in own
        }
        return [f"{name} ({form}; tells {tells})" for name, (form, tells) in forms.items()]

    def ready_for_sums(self) -> dict[str, Any]:
        """Make fresh masks if the guest reads only sums, and return what the other hosts must know of them."""
        assert self.method is not None
        secure, self._masks = self.about.get("secure_sum") is True and self.role == "host", None
        self._check_sums(self.method, secure)
        if not secure:
            return {}
        self._masks = sums.Masks(self.about["parties"] - 1, self._signer)
        return {"introduction": self._masks.introduction()}

    def _check_sums(self, method: Vertical, secure: bool) -> None:
        """Refuse a run whose guest would see this host's own numbers, where its owner does not want that."""
        if self._sums_only and not (secure and sums.summed(method)):
            raise UnalikeError(f"{self.name} takes part only where the guest reads sums over hosts (--secure-sum).")

    def _introductions(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        if self._masks is None:
            raise UnalikeError(f"{GUEST} named hosts for sums that {self.name} is in none of.")
        self._masks.meet(header.get("introductions"))
        return {"kind": "met"}, {}

    def _agreed(self, header: dict[str, Any]) -> Vertical:
        name, settings = header.get("method"), header.get("settings")
        if not isinstance(name, str) or not isinstance(settings, dict):
            raise UnalikeError(f"{GUEST} named no method.")
        if self.methods is not None and name not in self.methods:
            raise UnalikeError(f"{self.name} takes part in {', '.join(self.methods)}, not in {name[:60]!r}.")
        method = built(name, settings)
        if getattr(method, "bits", self._least_bits) < self._least_bits:
            raise UnalikeError(
                f"{self.name} takes keys of {self._least_bits} bits or more, not of {settings.get('bits')}."
            )
        return method

    def _aligned(self, train: Tensor, scale: str, uses: Any) -> tuple[Tensor, Tensor]:
        assert self.table is not None
        if self.positions is None:
            raise UnalikeError(f"{self.name} has not been aligned yet.")
        check_rows(train, len(self.positions), GUEST)
        self.table = self.table.without([c for c in self.table.columns if isinstance(uses, list) and c not in uses])
        present = self.positions >= 0
        x = torch.where(present[:, None], self.table.x[self.positions.clamp(min=0)], torch.nan)
        rows = train[present[train]]
        if not len(rows):
            raise UnalikeError(f"{self.name} has none of the training rows.")
        x, self.preparation = prepared(x, rows, self.table.schema, scale)
        return torch.where(present[:, None], x, 0.0), present

    def _call(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        if self.me is None or self.method is None:
            raise UnalikeError(f"{GUEST} called {self.name} before a run was set up.")
        function = function_of(self.method, header.get("function"), GUEST)
        count = len(tensors["rows"]) if "rows" in tensors and tensors["rows"].dim() else 0
        sizes = {"rows": count, "outputs": self.me.outputs, "columns": self.me.columns}
        sizes |= self.method.sizes(self.me.index)
        check(tensors, function.takes, self.method, sizes, GUEST)  # type: ignore[attr-defined]
        if "rows" in tensors:
            check_rows(tensors["rows"], len(self.me.x), GUEST)
        reply = function(self.me, Fields(tensors)) or {}
        at = (_whole(header, "epoch", 1 << 40), _whole(header, "step", 1 << 40))
        left = self.noise.over(reply, self.method, self._noise_source(at))
        return {"kind": "reply"}, self._hidden(left, header, tensors)

    def _hidden(
        self, reply: dict[str, Tensor], header: dict[str, Any], tensors: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return a reply with masks over the fields that are read as sums, if this run's sums are secure."""
        assert self.method is not None and self.me is not None
        names = sums.summed(self.method)
        if self._masks is None or not any(name in reply for name in names):
            return reply
        if not self.me.present[tensors["rows"]].all():
            raise UnalikeError(f"{self.name} lacks some of these rows, and a sum would tell another host's own number.")
        return self._masks.over(reply, names, sums.request_digest(header, tensors))

    def _noise_source(self, at: tuple[int, int]) -> Any:
        if self.secret or self.me is None:
            return SecretDraws(None, dtype=torch.float64)
        return KeyedDraws(torch.tensor(key(self.me.seed, "vertical noise", self.name, *at)), torch.float64)

    # ---- state on disk

    @property
    def ids_digest(self) -> str:
        """Return a hash of the table's ids in order: an alignment belongs to one table."""
        ids = self.table.ids if self.table else []
        return hashlib.sha256("\0".join(ids).encode()).hexdigest()[:32]

    def keep_alignment(self) -> None:
        """Keep which rows are used, for a later start. An alignment without a name is for a prediction only."""
        if self.folder is None or self.positions is None or not self.alignment:
            return
        tensors = {"positions": self.positions, **{f"{MATCHED}{n}": rows for n, rows in self.matched.items()}}
        self.folder.mkdir(parents=True, exist_ok=True)
        header = {"kind": "alignment", "alignment": self.alignment, "ids": self.ids_digest}
        replace(self.folder / "alignment", wire.encode(header, tensors))

    def load_alignment(self) -> bool:
        """Load the kept alignment; return False if there is none."""
        file = (self.folder or Path()) / "alignment"
        if self.folder is None or not file.exists():
            return False
        header, tensors = wire.decode(file.read_bytes())
        if header.get("ids") != self.ids_digest:
            raise UnalikeError(f"{file} is of a table with other ids: choose another folder, or remove the file.")
        self.alignment, self.positions = str(header.get("alignment")), tensors.pop("positions")
        self.matched = {name.removeprefix(MATCHED): rows for name, rows in tensors.items()}
        return True

    def _alignment(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        if self.positions is None:
            self.load_alignment()
        return {"kind": "alignment", "alignment": self.alignment}, {}

    def share(self, epoch: int) -> bytes:
        """Return this party's part of the model as a file: its numbers, and how its rows are prepared."""
        assert self.method is not None and self.me is not None
        schema = self.table.schema.plain() if self.table and self.table.schema else None
        about = {
            "kind": "share", "party": self.name, "role": self.role, "epoch": epoch, **self.about, "schema": schema,
            "preparation": self.preparation.plain() if self.preparation else None, "columns": self.me.columns,
            "fold_case": bool(self.table and self.table.fold_case),
        }  # fmt: skip
        return wire.encode(about, kept(self.method, self.me))

    def view(self) -> dict[str, Any] | None:
        """Return what this party may see of trees, for its report; None if the model has no trees."""
        assert self.method is not None and self.me is not None
        schema, ready = self.table.schema if self.table else None, self.preparation
        known = list((ready.features if ready else schema.features if schema else None) or [])
        known += [f"column {k}" for k in range(len(known), self.me.columns)]
        for flag, name in enumerate(reversed(self.about.get("flags") or []), 1):
            known[-flag] = f"{name} missing"
        unit = ready.raw if ready else lambda column, value: value
        return self.method.view(self.me, [self.name, *self.others], known, unit)

    def save(self, epoch: int) -> None:
        """Keep this party's part of the model after an epoch, and remove older ones."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        replace(self.folder / f"epoch-{epoch}.share", self.share(epoch))
        if (view := self.view()) is not None:
            replace(self.folder / FILE, json.dumps(view).encode())
        for file in self.folder.glob("epoch-*.share"):
            if (number := epoch_of(file)) is not None and number <= epoch - KEPT:
                file.unlink(missing_ok=True)

    def restore(self, epoch: int) -> None:
        """Return to the state after an epoch; 0 is the start."""
        assert self.method is not None and self.me is not None
        if epoch == 0:
            self.method.start(self.me)
            return
        file = (self.folder or Path()) / f"epoch-{epoch}.share"
        if self.folder is None or not file.exists():
            raise UnalikeError(f"{self.name} has nothing of epoch {epoch} to continue from.")
        header, tensors = wire.decode(file.read_bytes())
        same = json.loads(json.dumps([self.about["method"], self.about["settings"]]))
        if [header.get("method"), header.get("settings")] != same:
            raise UnalikeError(f"{file} is of another method or other settings: choose another folder.")
        put_back(self.method, self.me, tensors, str(file))

    def adopt(self, share: bytes) -> None:
        """Take a trained part of the model, to predict this table's aligned rows."""
        header, tensors = read_share(share)
        if header["party"] != self.name:
            raise UnalikeError(f"That is the share of {header['party']}, not of {self.name}.")
        self.method = built(header["method"], header["settings"])
        self.about = {name: header.get(name) for name in ABOUT}
        plain = header["preparation"]
        self.preparation = None if plain is None else Preparation.from_plain(plain)
        empty, place = torch.zeros(0, header["columns"]), (header["index"], header["parties"])
        self.me = Me(self.name, header["role"], empty, header["outputs"], 0, None, *place)
        self.method.start(self.me)
        put_back(self.method, self.me, tensors, f"the share of {self.name}")
        if self.table is not None and self.positions is not None:
            self._recode(header.get("schema"))
            self.me.x, self.me.present = self.rows_as_learned(), self.positions >= 0
            self.me.training = torch.zeros(len(self.me.x), dtype=torch.bool)

    def _recode(self, plain: Any) -> None:
        """Read the table again by the schema from which the model learned, unless it was read so already."""
        assert self.table is not None
        if plain is None or (
            self.table.schema is not None and same_features(self.table.schema, Schema.from_plain(plain))
        ):
            return
        if self._reader is None:
            raise UnalikeError(f"{self.name} has other columns, or other words in them, than its model learned from.")
        ids = self.table.ids
        try:
            self.table = self._reader(Schema.from_plain(plain))
        # shown to its owner only, because it may quote cells
        except UnalikeError as error:
            self._tell(str(error))
            raise UnalikeError(f"the table of {self.name} is not as its model learned: its own log has more.") from None
        if self.table.ids != ids:
            raise UnalikeError(f"the table of {self.name} has changed since its ids were compared.")

    def rows_as_learned(self) -> Tensor:
        """Return the aligned rows, prepared like those from which the model learned; zeros for missing rows."""
        assert self.table is not None and self.positions is not None
        x = (
            torch.nan_to_num(self.table.x)
            if self.preparation is None
            else self.preparation.apply(self.table.x).double()
        )
        return torch.where((self.positions >= 0)[:, None], x[self.positions.clamp(min=0)], 0.0)

    def _adopt(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        files = [f for f in (self.folder or Path()).glob("epoch-*.share") if epoch_of(f) is not None]
        if self.folder is None or not files:
            raise UnalikeError(f"{self.name} has no part of a model to predict with.")
        if self.positions is None:
            raise UnalikeError(f"{self.name} has not been aligned yet.")
        self.adopt(max(files, key=lambda f: epoch_of(f) or 0).read_bytes())
        assert self.me is not None
        return {"kind": "ready", "columns": self.me.columns, **self.ready_for_sums()}, {}

    def _save(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        self.save(_whole(header, "epoch", 1 << 40))
        return {"kind": "saved"}, {}

    def _restore(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        if self.me is None:
            raise UnalikeError(f"{GUEST} asked {self.name} to go back before a run was set up.")
        self.restore(_whole(header, "epoch", 1 << 40))
        return {"kind": "restored"}, {}

    def _done(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> Parts:
        return {"kind": "done"}, {}


def same_features(one: Schema, other: Schema) -> bool:
    """Return whether two schemas code the same columns in the same way."""
    return one.columns == other.columns


def read_share(data: bytes) -> Parts:
    """Read a party's part of a model; raise an error of one line for anything else."""
    header, tensors = wire.decode(data)
    kinds = {"party": str, "role": str, "method": str, "settings": dict, "epoch": int}
    kinds |= dict.fromkeys(("outputs", "columns", "index", "parties"), int)
    if header.get("kind") != "share" or any(type(header.get(name)) is not kind for name, kind in kinds.items()):
        raise UnalikeError("That is no party's share of a model.")
    return header, tensors


def epoch_of(file: Path) -> int | None:
    """Return the epoch of a kept share, from its file name."""
    found = re.fullmatch(r"epoch-(\d+)\.share", file.name)
    return int(found[1]) if found else None


def _only(tensors: dict[str, Tensor], name: str) -> Tensor:
    if set(tensors) != {name}:
        raise UnalikeError(f"{GUEST} sent {', '.join(sorted(tensors))[:100] or 'nothing'}; {name} was expected.")
    return tensors[name]


def _whole(header: dict[str, Any], name: str, most: int) -> int:
    value = header.get(name)
    if type(value) is not int or not 0 <= value < most:
        raise UnalikeError(f"{GUEST} sent {name} {str(value)[:40]}: it must be a whole number from 0.")
    return value
