"""The server's half, which Flower starts beside its SuperLink."""

from unalike.network.app import server_app

app = server_app()
