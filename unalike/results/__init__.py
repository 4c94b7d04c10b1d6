"""Evidence from run folders: evidence.py reads the rounds of several runs, stats.py has the tests."""
