"""`unalike compare`: methods, seeds and settings on one federation, and which method for which wish.

run.py makes the runs, evidence.py reads them, stats.py has the test, verdict.py the words, tune.py the equal budgets,
results.py the tables and files. docs/compare.md says how to read it all.
"""
