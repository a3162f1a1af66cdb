"""``envoy.service.ext_proc.v3.ExternalProcessor`` over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from policy_server.api.rpc import CallContext, OpenStreams
from policy_server.envoy.process_stream import ProcessSettings, ProcessStream


class ExternalProcessorServicer:
    """Passes messages between the stream and its state."""

    def __init__(self, settings: ProcessSettings, streams: OpenStreams) -> None:
        self._settings = settings
        self._streams = streams

    async def Process(self, requests: AsyncIterator[bytes], context: CallContext) -> None:  # noqa: N802
        """Serves one stream: one HTTP request and its response."""
        stream = ProcessStream(self._settings)
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                for answer in stream.receive(message):
                    await self._streams.write(context, answer)
        finally:
            stream.end()
