"""A client's half, which Flower starts beside a SuperNode for every message."""

from unalike.network.app import client_app

app = client_app()
