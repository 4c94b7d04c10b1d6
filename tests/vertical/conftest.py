import pytest
from vertical_door import HERE, NAMES, Door

from unalike.network import keys
from unalike.vertical.links import ENGINES


@pytest.fixture
def ring(tmp_path):
    """A guest's folder of keys, and the keys of all other parties."""
    keys.make_server(tmp_path / "keys", [HERE])
    for name in NAMES:
        public = keys.make_node(tmp_path / name)
        public.rename(tmp_path / "keys" / "clients" / f"{name}.pub")
    return tmp_path


@pytest.fixture
def door(ring):
    found = Door(ring)
    yield found
    found.end()


@pytest.fixture
def engine(request, monkeypatch):
    """The name of an engine; "tls": every party behind a socket of its own."""
    if request.param == "tls":
        monkeypatch.setitem(ENGINES, "tls", request.getfixturevalue("door").link)
    return request.param
