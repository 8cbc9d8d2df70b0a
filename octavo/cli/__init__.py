"""The `octavo` command."""

import os

# Before grpc is imported: its notes on closing connections are not for people at a terminal.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
