"""A guest's door on this machine, and parties in threads behind real TLS sockets."""

import threading

from unalike.vertical import line

HERE = "127.0.0.1"
NAMES = ("shop", "depot", "host", "host1", "host2", "coordinator")  # who has a key


class Killed(BaseException):
    """As good as kill -9: nothing is caught, nothing is written."""


class Door:
    """A listener and parties in threads of this process, which end when the test does."""

    def __init__(self, ring):
        self.ring, self.said, self.threads, self.errors = ring, [], [], []
        self.listener = line.Listener(ring / "keys", (HERE, 0), 60.0, self.said.append)

    def join(self, node, ca=None, then=None, audit=None):
        place, ca = (HERE, self.listener.port), ca or self.ring / "keys" / "ca.crt"

        def attend():
            try:
                line.attend(node, place, ca, self.ring / node.name, 20.0, self.said.append, audit)
            except Killed:
                self.join(then)
            except Exception as error:  # looked at by the test
                self.errors.append(error)

        self.threads.append(threading.Thread(target=attend, daemon=True))
        self.threads[-1].start()

    def link(self, node):
        """Return the guest's link to a party of this process that joins: an engine of `simulated`."""
        self.join(node)
        return self.listener.links([node.name], 20.0)[0]

    def end(self):
        self.listener.done()
        for thread in self.threads:
            thread.join(20)
