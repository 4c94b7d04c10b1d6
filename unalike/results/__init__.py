"""What run folders hold, as evidence: evidence.py reads the rounds of several runs, stats.py has the tests."""
