"""Real federations: a server, clients on their owners' machines, and what carries the bytes between them.

server.run          a config on clients that join over a network
client.Client       a client's data, state and rules; client.attend answers until told otherwise
one_machine         all of it on this machine, in processes that end with this one
link                what a network has to do
flower              Flower's network (pip install 'unalike[flower]')
keys                certificates and keys
"""
