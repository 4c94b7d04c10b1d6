"""How a setting is described: the types that annotations allow, and its form in a file."""
