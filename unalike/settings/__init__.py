"""How a setting is described: what annotations allow, and its form in a file."""
