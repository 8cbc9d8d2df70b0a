"""The `octavo` command."""

import os

# Before grpc is imported: its notes on closing connections are not for people at a terminal.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Before transformers is imported: that torch is absent is how a router is installed.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
