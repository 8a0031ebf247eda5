"""One crash of the file system's server under load, up to the moment at which the database answers again."""

from __future__ import annotations

import time
from collections.abc import Callable

from .load import Acknowledged, Load
from .storage import Place


def crash_under_load(where: Place, server, start_load: Callable[[], tuple[Load, Acknowledged]], delay_s: float) -> dict:
    """With `server` running: starts the load, kills the file system's server `delay_s` after the first acknowledgements,
    ends the orphaned database processes, mounts again and lets the database recover.

    Returns the count of rows acknowledged, the next unused row number and the seconds that mount and recovery took."""
    generator, client = start_load()
    try:
        client.wait_for(20)
        time.sleep(delay_s)
        generator.require_running()
        where.crash()
    finally:
        generator.stop()
        client.stop()
    server.kill()
    began = time.monotonic()
    where.recover()
    mounted = time.monotonic()
    server.start()
    return {
        "acknowledged": client.count,
        "next": client.next + 1,
        "mount_s": mounted - began,
        "recovery_s": time.monotonic() - mounted,
    }
