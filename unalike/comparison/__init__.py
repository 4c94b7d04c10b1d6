"""`unalike compare`: methods, seeds and settings on one federation, and which method suits which wish.

jobs.py makes the runs, unalike/results reads them and has the test, verdict.py the words, gains.py who gains, tune.py
the equal budgets, results.py the tables and files. docs/compare.md says how to read it all.
"""
