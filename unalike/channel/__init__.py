"""The way of a reply from a client to the server's sums. A new privacy step goes here.

Today the channel only weighs, sums and lets single values be read where a field declares it (`sums.py`). Stages that
clip, compress, noise or mask a reply stand between the client's reply and `Sums.add`, and undo on the total what must
be undone: docs/architecture.md says where.
"""

from unalike.channel.by_architecture import SumsByArchitecture
from unalike.channel.sums import Sums

__all__ = ["Sums", "SumsByArchitecture"]
