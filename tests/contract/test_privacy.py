"""What leaves a client, in a line made from the declarations."""

import copy
import dataclasses as dc

import pytest

from unalike import METHODS
from unalike.contract import Field, Method, fingerprint, privacy

SUM, EACH = "(the server reads the sum only)", "(the server reads each client's)"
PEERS = "(the server reads each client's and shows them to other clients)"


def sending(**fields):
    return type("Mine", (Method,), {"sends": fields})()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_each_field_is(name):
    """No field is left with its bare name: where the shape does not say what it is, `what` does."""
    method = METHODS[name]()
    line = privacy(method)
    assert line and "(of the" not in line and "one number" not in line and "×" not in line and "\n" not in line
    for field in method.sends.values():
        assert field.what in line or method.pooled


def test_methods_by_hand():
    def line(name, **options):
        return privacy(METHODS[name](**options))

    assert line("fedavg") == f"its change of the model {SUM}"
    assert line("fedmd") == f"its outputs for the public set {SUM}"
    assert line("feddf") == f"its change of the model {EACH}"
    mix = "means of groups of its samples and of their labels"
    assert line("fedmix") == f"its change of the model {SUM}; {mix} {PEERS}"
    assert line("def-kt") == "its model (sealed from client to client: the server cannot read it)"
    assert line("fedgen") == f"its change of the model {SUM}; its head and its class counts {EACH}"
    assert line("local-only") == line("dapper") == "nothing"
    assert line("centralized") == "all its samples (pooled in one place)"
    assert line("lg-fedavg", newcomer="logits").endswith(f"its own layers {PEERS}")  # what an option adds
    assert "layers" not in line("lg-fedavg")


def test_a_field_of_ones_own_without_words_has_its_name_and_shape():
    mine = sending(counts=Field("classes", read="each"), delta=Field("all but norm"), a=Field(("classes", 3)))
    delta = "its change of the model, all but norm and a (one number per class × 3)"
    assert privacy(mine) == f"{delta} {SUM}; counts (one number per class) {EACH}"
    assert privacy(sending(a=Field(what="its age"), b=Field(what="its age"))) == f"its age {SUM}"  # said once


def test_words_decide_nothing():
    plain, said = Field("classes", "each"), Field("classes", "each", what="its class counts")
    assert plain == said and hash(plain) == hash(said)
    method = copy.copy(METHODS["fedproto"]())
    before = fingerprint(method)
    sends = {name: dc.replace(field, what="other words") for name, field in method.sends.items()}
    other = type(type(method).__name__, (type(method),), {"sends": sends})()
    assert fingerprint(other) == before and "other words" in privacy(other)
