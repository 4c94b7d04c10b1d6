"""Real federations: a server, clients on their owners' machines, and the network between them.

server.run          runs a config on clients that join over a network
client.Client       a client's data, state and policy; client.attend answers requests until the run is over
one_machine         all of it on this machine, in processes that end with this one
link                the interface that a network must have
flower              Flower's network (pip install 'unalike[flower]')
keys                certificates and keys
"""
