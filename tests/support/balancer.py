"""A balancer of TCP connections, as a Service of Kubernetes is one: a new connection goes to the next of the backends that
are in it; connections stay where they are."""

import asyncio
import contextlib
import threading


class Balancer:
    """`ports`: of the backends, on this host; may be changed at any time. `port`: where clients connect."""

    def __init__(self, ports):
        self.ports = list(ports)
        self.opened = {}  # backend's port → connections so far
        self.next = 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.server = self.call(asyncio.start_server(self.serve, "127.0.0.1", 0))
        self.port = self.server.sockets[0].getsockname()[1]

    def call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    async def serve(self, reader, writer):
        port = self.ports[self.next % len(self.ports)]
        self.next += 1
        self.opened[port] = self.opened.get(port, 0) + 1
        with contextlib.suppress(OSError):
            backend_reader, backend_writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(self.pump(reader, backend_writer), self.pump(backend_reader, writer))
            backend_writer.close()
        writer.close()

    @staticmethod
    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            if writer.can_write_eof():
                writer.write_eof()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.loop.call_soon_threadsafe(self.server.close)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(30)
