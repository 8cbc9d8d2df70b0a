"""The `octavo` command."""

import os
import sys

# Before grpc is imported: its notes on closing connections are not for people at a terminal.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
if sys.argv[1:2] == ["router"]:
    # Before grpc is imported, too: its event engine passes each message through two more threads,
    # 6 to 8 % of a router's time (bench/LOG.md). A version without these experiments says so once.
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_client,-event_engine_listener")
# Before transformers is imported: that torch is absent is how a router is installed.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
