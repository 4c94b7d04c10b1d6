"""Vertical learning: parties that hold different columns of the same people.

    parties = ua.vertical.Parties.from_tables(
        {"bank": "bank.csv", "shop": "shop.csv"}, id="customer", label=("bank", "default"), test=0.2
    )
    print(parties.report)
    run = ua.vertical.fit(ua.vertical.LogisticRegression(), parties, protection="paillier")
    print(ua.vertical.sight_text(run.sees))

`method.py` is a method author's world, `methods/` the methods; `psi.py` and `align.py` find common people; `node.py`
is a party at its own place, `exchange.py` the guest's view of the others; `run.py` trains; `predict.py` uses a model,
also with a party away; `line.py`, `serve.py` and `join.py` are the same between machines. The guest has the labels,
hosts have other columns.
"""

from unalike.vertical.align import Report
from unalike.vertical.exchange import Hosts, PerParty, Replies
from unalike.vertical.fields import Field, answer
from unalike.vertical.method import METHODS, Me, Vertical
from unalike.vertical.methods.fedbcd import FedBCD
from unalike.vertical.methods.hardy import HardyLogistic
from unalike.vertical.methods.regression import LinearRegression, LogisticRegression
from unalike.vertical.methods.sealed import SealedLinear, SealedLogistic
from unalike.vertical.methods.secure_boost import SecureBoost
from unalike.vertical.methods.split_network import SplitNN
from unalike.vertical.parties import Parties
from unalike.vertical.predict import Share
from unalike.vertical.run import Run, Settings, fit
from unalike.vertical.sees import Sight, sight_text
from unalike.vertical.split import split

__all__ = [
    "METHODS", "FedBCD", "Field", "HardyLogistic", "Hosts", "LinearRegression", "LogisticRegression", "Me", "Parties",
    "PerParty", "Replies", "Report", "Run", "SealedLinear", "SealedLogistic", "SecureBoost", "Settings", "Share",
    "Sight", "SplitNN", "Vertical", "answer", "fit", "sight_text", "split",
]  # fmt: skip
