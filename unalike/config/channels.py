"""Channels in files and flags: [[channel]] tables, [run] channel as text, a user's own stages (path/file.py:Class)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unalike.channel import Stage, acting, as_table, as_text, parse, registered, texts
from unalike.channel.channel import tables as stage_tables
from unalike.config.user_files import absolute_file, from_file, is_file
from unalike.contract import Method
from unalike.errors import UnalikeError
from unalike.settings.typed import Known, hints, short

# tables in a file, one per stage, in order
CHANNEL = "channel"


def find_stage(kind: str) -> type[Stage]:
    """Return the stage class of a name, or of "path/to/file.py:Class"."""
    if not is_file(kind):
        return registered(kind)
    found = from_file(kind)
    if not (isinstance(found, type) and issubclass(found, Stage)):
        raise UnalikeError(f"{kind!r} is not a stage: it must be a class made from unalike.channel.Stage.")
    return found


def stage_settings(kind: type[Stage]) -> Known:
    """Return the settings that a [[channel]] table of this kind may have."""
    own = {"fields", *(f.name for f in kind.arguments())}
    return {name: setting for name, setting in hints(kind).items() if name in own}


def make_channel(given: Any, where: str = "") -> tuple[Stage, ...]:
    """Return the stages of [run] channel, given as a text or as a list of texts or tables. where: the file, for
    errors."""
    if isinstance(given, str) or not isinstance(given, list | tuple):
        return _stages(given, f"{where}[run] channel: ")
    places = [
        f"[[channel]] {k}" if isinstance(one, Mapping) else f"[run] channel {k}" for k, one in enumerate(given, 1)
    ]
    return tuple(stage for one, place in zip(given, places, strict=True) for stage in _stages(one, f"{where}{place}: "))


def _stages(given: Any, place: str) -> tuple[Stage, ...]:
    try:
        if isinstance(given, Mapping) and "kind" not in given:
            raise UnalikeError('it lacks kind, the name of a stage: kind = "clip" (unalike list stages).')
        return parse(given, find_stage)
    except UnalikeError as error:
        raise UnalikeError(f"{place}{str(error).removeprefix('channel: ')}") from None


def taken_in(config: dict[str, Any], where: str) -> list[dict[str, Any]] | None:
    """Return the [[channel]] tables of a file, with the checks that need nothing else; None if there are none. They are
    one way to write [run] channel, so a file may have only one of the two."""
    tables = config.get(CHANNEL)
    if tables is None:
        return None
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UnalikeError(
            f"{where}: channel must be tables, [[channel]], one for each stage; as text it belongs under [run]; got "
            f"{short(tables)}."
        )
    if isinstance(config.get("run"), dict) and CHANNEL in config["run"]:
        raise UnalikeError(f"{where} has [[channel]] tables, and [run] has channel too: give one of the two.")
    make_channel(tables, f"{where}: ")
    return [dict(table) for table in tables]


def check_channel(given: Any, method: Method, networks: int) -> None:
    """Check that the stages can be made, in this order, and that each acts on something that the method sends."""
    stages = make_channel(given)
    if stages and networks > 1:
        raise UnalikeError("[run] channel: clients have different networks; a channel needs one for all.")
    acting(stages, method)


def absolute_channel(given: Any) -> Any:
    """Return the channel with absolute paths; a text with a user's own stage becomes a list of tables."""
    tables = _as_tables(given)
    if isinstance(given, str) and not any(is_file(table["kind"]) for table in tables):
        return given
    return [{**table, "kind": absolute_file(table["kind"])} for table in tables]


def _as_tables(given: str | Sequence[Any]) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [as_table(text, find_stage) for text in texts(given)]
    return [table for one in given for table in (_as_tables(one) if isinstance(one, str) else [one])]


def channel_tables(given: str | Sequence[Any]) -> list[dict[str, Any]]:
    """Return a channel as tables with every setting of its stages, for clients on other machines, whose defaults may
    differ."""
    tables = _as_tables(given)
    whole = stage_tables([stage for table in tables for stage in make_channel([table])])
    return [{**every, "kind": table["kind"]} for table, every in zip(tables, whole, strict=True)]


def channel_text(given: Any) -> str:
    """Return a channel as one types it after --channel."""
    if isinstance(given, str):
        return given
    return ",".join(one if isinstance(one, str) else as_text(one) for one in given) or "none"
