"""Handles as awaitables: a thread of the library notifies the event loop, so that no thread blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Union

from ._native import Handle, Pending


def iterate(handle: Union[Handle, Pending]) -> Generator[Any, None, Any]:
    """The implementation of `await handle`."""
    if not handle.done():
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def tell() -> None:
            # If the task was cancelled meanwhile, the operation continues, and nothing waits for it.
            if not ended.done():
                ended.set_result(None)

        def on_end(_: Union[Handle, Pending]) -> None:
            try:
                loop.call_soon_threadsafe(tell)
            except RuntimeError:
                # The event loop is closed, so nothing waits any more.
                pass

        handle.add_done_callback(on_end)
        yield from ended
    return handle.wait()
