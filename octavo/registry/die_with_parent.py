"""Becomes another program that the kernel kills when this one's parent dies, however it dies.

    python -I -S die_with_parent.py PARENT_PID PROGRAM ARGUMENT...

Run as a file of its own, so that nothing has to happen between fork and exec of a process that has
threads. Imports the standard library only. Elsewhere than on Linux it only becomes the program.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, program = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the kernel knew
        sys.exit(1)
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
