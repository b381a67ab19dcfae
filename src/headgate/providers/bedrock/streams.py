"""The events of ConverseStream, turned into chunks: one reader per stream, which knows how far the answer is."""

from typing import TYPE_CHECKING, Any

from headgate.core.messages import Chunk
from headgate.providers.bedrock.answers import finish_reason, read_usage
from headgate.providers.bedrock.errors import decoded, error_event, stream_cut
from headgate.providers.bedrock.shapes import (
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    MessageStop,
    Metadata,
)

if TYPE_CHECKING:
    from headgate.providers.bedrock.aws import Frame


class EventReader:
    """Tool calls are counted from 0 in OpenAI's stream; Bedrock counts all blocks."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._calls: dict[int, int] = {}
        self._without_input: set[int] = set()
        self.begun = False
        """Something was said, or thought."""
        self._stopped = False
        self._counted = False

    def read(self, frame: "Frame") -> Chunk | None:
        """The chunk an event makes, if any: beginnings, ends, reasoning and events nobody knows yet make none."""
        headers = frame.headers
        match headers.get(":message-type"):
            case "exception":
                raise error_event(str(headers.get(":exception-type")), None, frame.payload, host=self._host)
            case "error":
                text = str(headers.get(":error-message") or "")
                raise error_event(str(headers.get(":error-code")), text, frame.payload, host=self._host)
        return self._event(headers.get(":event-type"), frame.payload)

    @property
    def ended(self) -> bool:
        """The last event was there; whatever comes now is of no interest."""
        return self._stopped and self._counted

    def end(self) -> None:
        """The connection ended. `messageStop` is what makes an answer whole."""
        if not self._stopped:
            raise stream_cut(self._host)

    def _event(self, kind: Any, payload: bytes) -> Chunk | None:
        match kind:
            case "contentBlockDelta":
                return self._delta(decoded(payload, ContentBlockDelta, self._host))
            case "contentBlockStart":
                return self._start(decoded(payload, ContentBlockStart, self._host))
            case "contentBlockStop":
                return self._block_stop(decoded(payload, ContentBlockStop, self._host).content_block_index)
            case "messageStop":
                self._stopped = True
                reason = decoded(payload, MessageStop, self._host).stop_reason
                return Chunk(finish_reason=finish_reason(reason, self._host))
            case "metadata":
                self._counted = True
                usage = read_usage(decoded(payload, Metadata, self._host).usage)
                return Chunk(usage=usage) if usage else None
        return None

    def _start(self, event: ContentBlockStart) -> Chunk | None:
        call = event.start.tool_use
        if call is None or call.type:
            return None
        block = event.content_block_index
        index = self._calls[block] = len(self._calls)
        self._without_input.add(block)
        self.begun = True
        function = {"name": call.name, "arguments": ""}
        begun = {"index": index, "id": call.tool_use_id, "type": "function", "function": function}
        return Chunk(tool_calls=[begun])

    def _delta(self, event: ContentBlockDelta) -> Chunk | None:
        self.begun = self.begun or bool(event.delta.text or event.delta.reasoning_content)
        if event.delta.text:
            return Chunk(text=event.delta.text)
        piece = event.delta.tool_use
        if piece is None or not piece.input or event.content_block_index not in self._calls:
            return None
        self._without_input.discard(event.content_block_index)
        return self._input(event.content_block_index, piece.input)

    def _block_stop(self, block: int) -> Chunk | None:
        """A call without arguments streams none at all; for whoever parses them they are an empty object."""
        if block not in self._without_input:
            return None
        self._without_input.discard(block)
        return self._input(block, "{}")

    def _input(self, block: int, arguments: str) -> Chunk:
        return Chunk(tool_calls=[{"index": self._calls[block], "function": {"arguments": arguments}}])
