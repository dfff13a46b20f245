"""Time that passes for a loop which nobody runs otherwise."""

import asyncio
from threading import Thread


def pass_time(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """What is due is done. In a thread of its own, since the browser's tests leave a running loop in this one."""
    thread = Thread(target=loop.run_until_complete, args=(asyncio.sleep(seconds),))
    thread.start()
    thread.join()
