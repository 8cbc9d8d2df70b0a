"""SIGUSR1 shows where every task and thread of a process is, and ends nothing."""

import asyncio
import signal
import subprocess
import sys

PROGRAM = """
import asyncio, sys, time
from octavo.stacks import show_stacks_on_signal

async def inner(forever):
    await forever.wait()

async def middle(forever):
    await inner(forever)

def hang():
    time.sleep(2)

async def main():
    show_stacks_on_signal()
    task = asyncio.create_task(middle(asyncio.Event()), name="a waiting one")
    await asyncio.sleep(0)
    print("waits", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("hangs", flush=True)
    hang()
    print("lives", flush=True)

asyncio.run(main())
"""


async def test_a_signal_shows_tasks_and_threads() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin and process.stdout and process.stderr
    assert await process.stdout.readline() == b"waits\n"
    process.send_signal(signal.SIGUSR1)
    shown = ""
    async with asyncio.timeout(20):
        while "in inner" not in shown:
            shown += (await process.stderr.readline()).decode()
    assert shown.index("task 'a waiting one'") < shown.index("in middle") < shown.index("in inner")
    process.stdin.write(b"\n")
    assert await process.stdout.readline() == b"hangs\n"
    await asyncio.sleep(0.5)
    process.send_signal(signal.SIGUSR1)  # no event loop runs now
    async with asyncio.timeout(20):
        while "in hang" not in shown:
            shown += (await process.stderr.readline()).decode()
    rest, _ = await process.communicate()
    assert rest == b"lives\n" and process.returncode == 0
