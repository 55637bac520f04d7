"""Runs a command beside an object store whose answers take time.

    python bindings/python/benches/slow_store.py --moto target/python/moto/bin/moto_server --delay-ms 30 -- \\
        python bindings/python/benches/restore.py --place s3://bench/job

The store is moto's server of S3, which `checkpoint/test-object-store.sh` installs. A proxy before it delivers whatever a client
sends so many milliseconds later, as a network with that round trip would; it keeps nothing else back. The command finds the
store by the variables of the AWS tools, with an empty bucket `bench` in it. The programs must be built with the feature
`object-store`.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import urllib.request

READ_BYTES = 1 << 20
BUCKET = "bench"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def started(port):
    """Waits until somebody listens there."""
    for _ in range(300):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            # Sleep: a process that begins to listen tells nobody.
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return
    sys.exit(f"the store does not listen on port {port} after 30 s")


async def carry(reader, writer, delay_s):
    """Whatever comes, so much later, in its order; reads go on meanwhile."""
    loop = asyncio.get_running_loop()
    coming = asyncio.Queue(maxsize=1024)

    async def deliver():
        while True:
            at, data = await coming.get()
            await asyncio.sleep(max(0.0, at - loop.time()))
            if not data:
                break
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    delivering = asyncio.ensure_future(deliver())
    data = b"first"
    while data:
        data = await reader.read(READ_BYTES)
        await coming.put((loop.time() + delay_s, data))
    await delivering


async def proxy(port, to_port, delay_s):
    async def serve(reader, writer):
        try:
            from_store, to_store = await asyncio.open_connection("127.0.0.1", to_port)
            await asyncio.gather(carry(reader, to_store, delay_s), carry(from_store, writer, 0.0))
            to_store.close()
        except (OSError, asyncio.CancelledError):
            pass
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", port)


async def run(args):
    moto, port = free_port(), free_port()
    store = subprocess.Popen([args.moto, "--port", str(moto)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await started(moto)
        made = urllib.request.Request(f"http://127.0.0.1:{moto}/{BUCKET}", method="PUT")
        urllib.request.urlopen(made).close()
        await proxy(port, moto, args.delay_ms / 1e3)
        where = {
            "AWS_ENDPOINT": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
        }
        command = await asyncio.create_subprocess_exec(*args.command, env={**os.environ, **where})
        return await command.wait()
    finally:
        store.terminate()
        store.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moto", required=True, help="moto_server")
    parser.add_argument("--delay-ms", type=float, default=30.0, help="of each request (default 30)")
    parser.add_argument("command", nargs="+", help="the command, after --")
    sys.exit(asyncio.run(run(parser.parse_args())))


if __name__ == "__main__":
    main()
