"""A stage of a channel that tells clients a bound, and hears from each whether it kept within: for tests of the way."""

import dataclasses as dc

from unalike.channel.stage import Stage, norms


@dc.dataclass(frozen=True)
class Follow(Stage):
    """Clips to a bound that the server moves by the share of clients that kept within."""

    name = "follow"
    wide = True
    extra = ("within",)

    def told(self, values):
        return {"bound": values.get("bound", 0.05)}

    def client(self, way):
        length, bound = norms([*way.flights.values()]), way.told["bound"]
        way.extra["within"] = (length <= bound).to(length.dtype)
        for name, flight in way.flights.items():
            scale = (bound / length.clamp_min(1e-30)).clamp_max(1.0)[:, None].to(flight.values.dtype)
            way.flights[name] = dc.replace(flight, values=flight.values * scale)

    def server(self, total):
        share = total.extra["within"] / total.came
        total.values["bound"] = self.told(total.values)["bound"] * (1.3 - share)
