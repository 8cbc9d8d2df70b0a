"""A service of any size on virtual time: real scheduler, pool, prefix cache and placement.

    workload --> router (RouteFinder, place, Worker: the router's own code)
                    |  legs                    ^ load samples
                    v                          |
                 engines (Scheduler, BlockPool, PrefixCache: the engine's own code)
                    |  StepPlan
                    v
                 step cost (measured, or from a roofline) --> Clock

What is imitated is only what takes time or crosses a wire: model steps, messages, copies, Redis.
"""

import sys
from pathlib import Path

# What measures (served.py, validate.py) uses the load generator and the engines of bench/, whose
# files import each other as scripts do.
sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))
