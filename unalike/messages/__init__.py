"""Messages between a server and its clients: their bytes, and the checks that both ends make of them."""
