"""What a client's owner allows: the settings of a file, policy.toml, and the same as flags of `unalike join`.

A policy belongs to the client. It is checked when a plan comes, and again at every request: a server could later ask
for something else than it announced.
"""

from __future__ import annotations

import argparse
import dataclasses as dc
import hashlib
import operator
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

import unalike
from unalike import config
from unalike.channel import STAGES, parse
from unalike.channel.channel import as_table, registered
from unalike.channel.stage import Stage
from unalike.channel.stages.noise import AUTO, Noise
from unalike.channel.stages.secure_sum import Summed
from unalike.client.limits import Limits
from unalike.contract import Method
from unalike.errors import UnalikeError
from unalike.messages.check import check_allowed
from unalike.methods import METHODS
from unalike.settings import typed
from unalike.settings.knobs import check_fields, knob

# parts of a plan
PLANNED = (*(table for table in config.TABLES if table not in ("data", "run")), config.MODELS_TABLE)
PLANNED_RUN = ("seed", "dtype", "buffers", "architecture", "channel")  # settings of [run] that a plan may have
BOUNDS: dict[str, Callable[[Any, Any], bool]] = {  # comparisons in `require`
    "neighbours": lambda has, wants: has is None or (wants is not None and has >= wants),  # none: all
    "norm": operator.le, "multiplier": operator.ge, "threshold": operator.ge, "least": operator.ge,
    "limit": operator.ge,
    "key": lambda has, wants: has == wants if isinstance(wants, str) else has >= wants,
}  # fmt: skip
SEPARATORS = re.compile(r"[/\\~]|^\.|\0")
FLAGS = {"files": "file"}  # settings whose flag has another name
# for clients that all belong to the user, as on one machine: the same freedom as a simulation
OPEN = {"least_batch": 1, "least_steps": 1}
OPEN |= dict.fromkeys(("max_parameters", "max_steps", "max_exchanges", "max_repeats"), 10**12)


@dc.dataclass(frozen=True)
class Policy:
    """What a client is willing to do. None means no limit, or no list."""

    methods: tuple[str, ...] | None = knob(
        None, "methods that it runs; by default all built in but those that send means of samples (fedmix)"
    )
    files: tuple[Path, ...] = knob((), "Python files from which a run may take a method, model, loss or metric")
    models: tuple[str, ...] | None = knob(None, "networks that it trains, by the hash that `join` prints")
    channels: tuple[str, ...] | None = knob(None, "stages that the channel of a run may have")
    require: tuple[str, ...] = knob(
        (),
        "stages that replies must go through, as clip:1.0,local-noise:2.0: clipped to that norm at most, with that "
        "noise at least; a name alone is any clip, any noise above 0, and hidden sums by their default settings at "
        "least (secure-sum: threshold 0.67, all as neighbours, 3 clients)",
    )
    least_noise: float = knob(0.0, "multiplier at least of noise that this client adds itself", least=0)
    fields: tuple[str, ...] | None = knob(None, "fields of replies that may leave")
    least_cohort: int = knob(1, "clients that a run, and each of its hidden sums, must have at least", least=1)
    least_batch: int = knob(8, "samples of its own that any step, average or score is made of, at least", least=1)
    least_steps: int = knob(4, "steps of a training at least, or as many samples in fewer, larger ones", least=1)
    max_parameters: int = knob(1_000_000_000, "numbers of a network at most", least=1)
    max_steps: int | None = knob(100_000, "mini-batch steps of one training at most", least=1)
    max_exchanges: int = knob(8, "answers in one round at most", least=1)
    max_repeats: int = knob(
        9, "times that one round may begin again, after a failure of the server or a hidden sum that was void", least=0
    )
    max_rounds: int | None = knob(None, "rounds of one run at most", least=1)
    max_runs: int | None = knob(None, "runs at most, ever", least=1)
    keep_runs: int = knob(8, "runs whose state stays on the disk, the last ones", least=1)
    allow_samples: bool = knob(False, "this client's own samples may be sent to the server, by methods that do so")
    allow_evaluation: bool | None = knob(
        None, "answer exact scores on its own samples; by default unless it requires noise"
    )
    ask: bool = knob(False, "show what a server wants to know or to do, and wait for a yes")
    repeatable: bool = knob(False, "noise from the run's seed: no privacy, for tests")

    def __post_init__(self) -> None:
        check_fields(self, "", KINDS)
        for text in self.require:
            for stage in () if text in STAGES else parse(text):
                if isinstance(stage, Noise) and stage.multiplier == AUTO:
                    raise UnalikeError(f"--require {text}: give the least multiplier as a number, or the name alone.")
        for name in self.methods or ():
            if name not in METHODS:
                raise unalike.errors.unknown("method", name, METHODS)
        for name in self.channels or ():
            if name not in STAGES:
                raise unalike.errors.unknown("stage", name, STAGES)
        for file in self.files:
            if not file.is_file():
                raise UnalikeError(f"There is no file {file}.")

    @classmethod
    def open(cls, **settings: Any) -> Self:
        """Return a policy without bounds on amounts, for clients that belong to the user."""
        return cls(**{**OPEN, **settings})

    @classmethod
    def of(cls, settings: dict[str, Any], where: str) -> Self:
        """Return a policy from a file's settings; where: their source, for errors."""
        typed.check(where, settings, typed.hints(cls))
        return cls(**{name: _as_field(name, value) for name, value in settings.items()})

    def plain(self) -> dict[str, Any]:
        """Return the policy as a file's settings, without defaults."""
        default = {f.name: f.default for f in dc.fields(self)}
        given = {n: v for n, v in dc.asdict(self).items() if v != default[n] and v is not None}
        return {n: [*map(str, v)] if isinstance(v, tuple) else v for n, v in given.items()}

    @property
    def limits(self) -> Limits:
        """Return the limits on one piece of work."""
        return Limits(self.max_steps, self.least_batch, self.least_steps)

    @property
    def requires_noise(self) -> bool:
        """Return whether the client answers only through noise or in secure sums."""
        required = (registered(as_table(text)["kind"]) for text in self.require)
        return self.least_noise > 0 or any(issubclass(kind, Noise | Summed) for kind in required)

    # ---- a plan

    def check_clients(self, clients: int) -> None:
        """Refuse a run with too few clients."""
        if clients < self.least_cohort:
            raise UnalikeError(
                f"The run has {clients} clients; this client takes part among {self.least_cohort} at least "
                "(least_cohort)."
            )

    def check_method(self, method: Method) -> None:
        """Refuse a method that sends what this client does not allow."""
        name = type(method).__name__
        check_allowed(method, self.allow_samples, "client")
        if method.pooled:
            raise UnalikeError(f"{name} pools data, which stay here.")
        if not method.ships and any("input" in field.names for field in method.sends.values()):
            self._check_means(method)
        self.check_leaving(method.sends)

    def _check_means(self, method: Method) -> None:
        """Refuse a method that sends means of samples, unless the owner has named the method and each mean is over
        enough samples."""
        name, group = type(method).__name__, getattr(method, "group", None)
        if self.methods is None:
            raise UnalikeError(
                f"{name} sends what it makes of the samples themselves: this client runs it only if its owner has "
                "named it (--methods)."
            )
        if group is not None:
            self.limits.check_rows(int(group), "means of")
        if getattr(method, "short", None) == "own":
            self.limits.check_rows(1, "means of what is left over, of as few as")

    def check_leaving(self, names: Iterable[str]) -> None:
        """Refuse a run in which fields would leave that may not."""
        for name in names if self.fields is not None else ():
            if name not in (self.fields or ()):
                raise UnalikeError(
                    f"The run has this client send {name!r}, and its policy lets {', '.join(self.fields or ())} leave "
                    "only (fields)."
                )

    def check_model(self, digest: str) -> None:
        """Refuse a network that is not on the owner's list."""
        if self.models is not None and digest not in self.models:
            raise UnalikeError(
                f"The run's network is {digest}, which is not among this client's (models in its policy)."
            )

    def check_channel(self, stages: Sequence[Stage]) -> None:
        """Refuse a run whose channel lacks a stage that this client requires, or has one that it does not allow."""
        has = ", ".join(map(str, stages)) or "none"
        for wanted in self.require:
            if not any(_meets(stage, wanted) for stage in stages if not stage.fields):
                raise UnalikeError(
                    f"This client answers through a channel with {wanted} only (--require); the run's has {has}."
                )
        for stage in stages if self.channels is not None else ():
            if stage.name not in (self.channels or ()):
                raise UnalikeError(
                    f"The run's channel has {stage.name}; this client's policy allows {', '.join(self.channels or ())} "
                    "only (channels)."
                )
        if self.least_noise and not any(_own_noise(stage) >= self.least_noise for stage in stages):
            raise UnalikeError(
                f"This client answers through noise of its own of at least {self.least_noise:g} times the clip only "
                f"(least_noise); the run's channel has {has}."
            )

    def check_sums(self, stage: Summed | None) -> None:
        """Refuse to answer sums for preparing features in the open, or hidden by less than this client insists on."""
        for wanted in self.require:
            hides = issubclass(registered(as_table(wanted)["kind"]), Summed)
            if hides and (stage is None or not _meets(stage, wanted)):
                raise UnalikeError(
                    f"This client answers sums of its features by {wanted} only (--require), and the server asks for "
                    f"them {'in the open' if stage is None else f'by {stage}'}."
                )

    def check_evaluation(self) -> None:
        """Refuse to send exact scores if the owner does not want it."""
        if self.allow_evaluation is False:
            raise UnalikeError("This client is not evaluated on its own samples (allow_evaluation = false).")
        if self.requires_noise and not self.allow_evaluation:
            raise UnalikeError(
                "This client answers through noise or in sums only (--require), and scores on its own samples are "
                "exact: it is not evaluated, unless it is started with --allow-evaluation."
            )

    def _with_own(self, plan: dict[str, Any], value: Any) -> Any:
        """Return a part of the plan with file names replaced by this client's own files; raise for a file that it was
        not given."""
        there = {file.name: file for file in self.files}

        def own(name: str, thing: str) -> str:
            if name not in there:
                raise UnalikeError(f"The run wants {name}:{thing}; this client was not given {name} (--file).")
            if digest(there[name]) != plan["files"].get(name):
                raise UnalikeError(f"The run's {name} is not this client's {name}: give both the same file.")
            return f"{there[name].resolve()}:{thing}"

        _no_paths(value)
        return with_files(value, own)

    def settings(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Return the plan's settings of a run. A channel comes as tables, because a text could name a file that nobody
        checks."""
        found = {k: plan["run"][k] for k in PLANNED_RUN if k in plan["run"]}
        stages = found.get("channel", [])
        if not isinstance(stages, list) or not all(isinstance(stage, dict) for stage in stages):
            raise UnalikeError(f"The plan's channel must be tables; got {reprlib.repr(stages)}.")
        return found | ({"channel": self._with_own(plan, stages)} if stages else {})

    def tables(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Return the plan's tables with file names replaced by this client's own files."""
        tables = self._with_own(plan, plan["tables"])
        method = tables.get("method", {})
        name = method.get("name", "fedavg")
        if "file" not in method and self.methods is not None and name not in self.methods:
            raise UnalikeError(f"The run is of {name!r}; this client runs {', '.join(self.methods)} only (--methods).")
        return tables

    def check_size(self, build: Callable[[], nn.Module]) -> None:
        """Refuse a network that is too large, before it takes any memory."""
        try:
            with torch.device("meta"):
                module = build()
        except UnalikeError:
            raise
        # a user's own network that cannot be built without memory
        except Exception:
            return
        count = sum(tensor.numel() for tensor in (*module.parameters(), *module.buffers()))
        if count > self.max_parameters:
            raise UnalikeError(
                f"The run's network has {count:,} numbers; this client trains {self.max_parameters:,} at most "
                "(max_parameters)."
            )

    def check_labels(self, method: Method, y: Tensor) -> None:
        """Refuse a method that sends sums by class if a class has few of this client's samples: a sum over one sample
        reveals that sample."""
        by_class = [name for name, field in method.sends.items() if field.names[:1] == ("classes",) != field.names]
        if by_class and not y.is_floating_point():
            counts = torch.bincount(y.reshape(-1))
            if int(counts[counts > 0].min()) < self.least_batch:  # how many is not told: the server reads this
                raise UnalikeError(
                    f"The run wants {by_class[0]!r} of a class over fewer than {self.least_batch} of this client's "
                    "samples (least_batch)."
                )


KINDS = {name: typed.words(hint) for name, (hint, *_) in typed.hints(Policy).items() if hint not in (Any,)}
KINDS = {name: kind for name, kind in KINDS.items() if kind in ("a number", "a whole number", "true or false")}


def _as_field(name: str, value: Any) -> Any:
    """Return a value from a file in the policy's types: lists as tuples, of paths for files."""
    if not isinstance(value, list):
        return value
    return tuple(map(Path, value)) if name == "files" else tuple(value)


def _meets(stage: Stage, wanted: str) -> bool:
    """Return whether a run's stage is the one that a client requires, within the bounds that it names."""
    table = as_table(wanted)
    if type(stage) is not registered(table.pop("kind")):
        return False
    if isinstance(stage, Noise) and (stage.multiplier == AUTO or not stage.z):
        return False
    if isinstance(stage, Summed):
        table = _defaults(stage) | table
    return all(BOUNDS.get(name, operator.eq)(getattr(stage, name), value) for name, value in table.items())


def _defaults(stage: Summed) -> dict[str, Any]:
    """Return the settings of a stage that have bounds, at their defaults: where a client names none of its own, a plan
    must not have less. A server that sets the threshold to 0.01 would open single replies."""
    fields = {field.name: field.default for field in dc.fields(stage)}
    return {name: value for name, value in fields.items() if name in BOUNDS and not isinstance(value, str)}


def _own_noise(stage: Stage) -> float:
    """Return the multiplier of noise that clients themselves add to all fields; 0 for any other stage."""
    if not isinstance(stage, Noise) or not stage.local or stage.fields or stage.multiplier == AUTO:
        return 0.0
    return stage.z


def _no_paths(value: Any) -> None:
    """Refuse a text in a plan that could lead to a file: a plan may open only files that the client was given."""
    if isinstance(value, dict):
        for name, part in value.items():
            _no_paths(name)
            _no_paths(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _no_paths(part)
    elif isinstance(value, str) and not config.is_file(value) and SEPARATORS.search(value):
        raise UnalikeError(f"The plan says {reprlib.repr(value)}: a client opens no path from a plan.")


def no_files(tables: dict[str, Any]) -> None:
    """Refuse a model's option that names a file, whatever the option is called."""
    for table in (tables.get("model", {}), *tables.get(config.MODELS_TABLE, {}).values()):
        known = config.model_settings(table)
        for name, value in table.items():
            if value is not None and name in known and known[name].knob.file:
                raise UnalikeError(
                    f"The plan gives the model {name} = {reprlib.repr(value)}: a client opens no path from a plan. "
                    "Build such a model in a file of your own (--file)."
                )


def with_files(value: Any, other: Callable[[str, str], str]) -> Any:
    """Return tables, or a value in them, with every "file.py:thing" replaced by `other(file, thing)`."""
    if isinstance(value, dict):
        return {k: with_files(v, other) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [with_files(v, other) for v in value]
    return other(*value.rpartition(":")[::2]) if config.is_file(value) else value


def digest(file: Path) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


# ---------------------------------------------------------------- files and flags


def read_policy(file: Path) -> dict[str, Any]:
    """Read policy.toml: check every setting's name and type, and resolve paths from the file's folder."""
    settings = config.load_toml(file)
    typed.check(str(file), settings, typed.hints(Policy))
    if "files" in settings:
        settings["files"] = [str(file.parent / name) for name in settings["files"]]
    return settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every setting of a policy."""
    group = parser.add_argument_group("policy", "what this client is willing to do; flags come before the file")
    group.add_argument("--policy", metavar="FILE", help="a file of these settings, policy.toml")
    for name, (hint, default, about) in typed.hints(Policy).items():
        flag, kind = f"--{FLAGS.get(name, name).replace('_', '-')}", typed.words(hint)
        shown = f" [{default}]" if kind in ("a number", "a whole number") and default is not None else ""
        options: dict[str, Any] = {"dest": name, "help": about.words.replace("%", "%%") + shown, "default": None}
        if kind == "true or false":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        elif name == "files":
            group.add_argument(flag, metavar="FILE.py", action="append", **options)
        elif kind in ("a number", "a whole number"):
            group.add_argument(flag, metavar="N", type=int if kind == "a whole number" else float, **options)
        else:
            group.add_argument(flag, metavar="A,B", type=lambda text: [*filter(None, text.split(","))], **options)


def policy_of(args: argparse.Namespace) -> Policy:
    """Return the policy from a file and from flags; flags take precedence."""
    settings = read_policy(Path(args.policy)) if args.policy else {}
    given = {name: getattr(args, name) for name in typed.hints(Policy) if getattr(args, name) is not None}
    return Policy.of({**settings, **given}, "unalike join")
