"""`unalike reproduce`: the papers' tables, run again, beside the papers' own numbers.

papers/*.toml say what to run and what the papers print; define.py makes jobs of them, jobs.py runs them, measure.py
compares, pages.py writes the pages, choose.py picks settings by cross-validation, local_models.py evaluates the means
of local models, centroids.py measures how far apart the clients' features are. docs/reproduce.md says how to use it and
how to read the results.
"""
