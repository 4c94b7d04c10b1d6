"""One client: its job, the plan and the loop of its training, its evaluation, its state, and its answers to requests.

Everything here is what a real client runs; engines run it for many clients at once.
"""
