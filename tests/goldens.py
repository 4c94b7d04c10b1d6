"""What replays of golden files share: where they run, a ledger of what they compare, and a server that keeps what
single clients sent."""

import dataclasses as dc
import json
import re

import pytest
from paths import GOLDEN, ROOT

from unalike.errors import UnalikeError

everywhere = pytest.mark.parametrize(
    ("engine", "dtype"), [(e, d) for e in ("sequential", "batched") for d in ("float32", "float64")]
)
KEYS = {"round", "participants", "step", "coin"}  # of a row, which are no results
# of a file without "results", which are no results: about it, and what goes in
GIVEN = {
    "method", "kind", "source", "note", "model", "w0", "w", "z", "hyper", "clients", "restatement_max_abs_difference",
}  # fmt: skip
WHOLE = "file"  # the case that a file's own numbers belong to


def golden(file):
    return json.loads((GOLDEN / f"{file}.json").read_text())


class Ledger:
    """Which cases of golden files, and which of their numbers, the tests of a module compare."""

    def __init__(self):
        self.replayed = set()  # (file, case, field)

    def replays(self, file, *cases, fields):
        """Mark a test as the replay of these cases of a file, of which it compares the fields named."""
        self.replayed.update((file, case, field) for case in cases for field in fields.split())
        return pytest.mark.parametrize("case", cases)

    def check(self):
        """Assert that every number of these files is compared, or listed as left out in docs/readings.md."""
        listed = set(left_out())
        assert listed and all((GOLDEN / f"{file}.json").exists() for file, *_ in listed)
        files = {file for file, *_ in self.replayed}
        listed = {number for number in listed if number[0] in files}
        known = {number for file in files for number in numbers(file)}
        whole = {(file, case, "all") for file, case, _ in known}
        assert known >= self.replayed and listed <= known | whole, (self.replayed - known, listed - known - whole)
        silent = {n for n in known - self.replayed - listed if (*n[:2], "all") not in listed}
        assert silent == set()


def numbers(file):
    """Every (file, case, field) that a golden file has."""
    content = golden(file)
    results = content.get("results")
    if results is None:
        results = {case: rows for case, rows in content.items() if case.endswith("rounds")}
        yield from ((file, WHOLE, field) for field in set(content) - set(results) - GIVEN)
    if isinstance(results, list):
        results = {str(row["alpha"]): [row] for row in results}
    for case, rows in results.items():
        about = (content.get("cases") or {}).get(case, {})
        fields = set().union(*rows, (key for key in about if key.startswith("personal"))) - KEYS
        yield from ((file, case, field) for field in fields)


def left_out():
    """The table of docs/readings.md: file, case, fields ("all": every one), why."""
    text = (ROOT / "docs" / "readings.md").read_text().split("## Left out of the golden files")[1]
    for file, case, fields, why in re.findall(r"^\| `(.+?)` \| `(.+?)` \| (.+?) \| (.+?) \|$", text, re.M):
        assert why
        for field in re.findall("`(.+?)`", fields) or ["all"]:
            yield file, case, field


def watched(method):
    """The method, with a server that may read and keeps what single clients sent last: `server.sent_delta`, a row for
    each of `server.sent_ids`."""

    class Watched(type(method)):
        sends = {name: dc.replace(field, read="each") for name, field in method.sends.items()}

        def round(self, server, cohort):
            call = cohort.call

            def watching(fn, **message):
                replies = call(fn, **message)
                server.sent_ids = replies.ids.tolist()
                for name in self.sends:
                    try:
                        setattr(server, f"sent_{name}", replies.each(name))
                    except UnalikeError as error:  # another call of the round brings it
                        assert "have no field" in str(error)
                return replies

            cohort.call = watching
            super().round(server, cohort)

    return Watched(**{f.name: getattr(method, f.name) for f in dc.fields(method)})
