"""`octavo top`: what a running service does, on a terminal."""
