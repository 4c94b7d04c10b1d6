"""The methods of vertical learning, one file for each idea."""
