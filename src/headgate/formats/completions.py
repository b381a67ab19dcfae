"""OpenAI's older completions, which are only text, and their translation through chat."""

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from headgate.core.answer import BLANK, UNREASONED, Answer, Chunk
from headgate.core.call import Call, Format
from headgate.core.errors import InvalidRequest
from headgate.formats import chat
from headgate.formats.chat import BLANK_TEXT, END, NULL
from headgate.formats.foreign_bodies import EMPTY, UNREADABLE, read_usage
from headgate.formats.reading import NoAnswer, read_value

_encode: Final = msgspec.json.Encoder().encode


class _Choice(msgspec.Struct):
    text: msgspec.Raw
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: msgspec.Raw = NULL
    error: msgspec.Raw = NULL


_read_completion: Final = msgspec.json.Decoder(_Completion).decode


def read_answer(body: bytes) -> Answer:
    """The answer in a body, which is kept as it is. Raises `NoAnswer`."""
    try:
        completion = _read_completion(body)
        if not body.isascii():
            body.decode()  # The texts are not read here, and a client could not read them either.
    except UNREADABLE as error:
        raise NoAnswer(f"its body is no completion: {error}") from None
    if not completion.choices:
        raise NoAnswer("its body holds no answer")
    if completion.error is not NULL and bytes(completion.error) not in EMPTY:
        raise NoAnswer("its body is an error")
    blank = all(
        choice.finish_reason in UNREASONED and BLANK_TEXT.fullmatch(memoryview(choice.text)) is not None
        for choice in completion.choices
    )
    return Answer(
        body=body,
        usage=read_usage(completion.usage),
        flaw=BLANK if blank else None,
        finish_reason=completion.choices[0].finish_reason,
    )


def to_chat(call: Call) -> Call:
    """The same question as a chat, for upstreams that only chat; `InvalidRequest` when it cannot be one."""
    fields = dict(call.fields)
    prompt = read_value(fields.pop("prompt", None))
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise InvalidRequest("prompt must be one text: this model's upstream takes no list", param="prompt")
    fields["messages"] = [{"role": "user", "content": prompt}]
    return msgspec.structs.replace(call, format=Format.CHAT, fields=fields, read=None)


def from_chat(answer: Answer, call: Call) -> Answer:
    body = answer.json()
    body |= {"id": f"cmpl-{call.id}", "object": "text_completion"}
    body["choices"] = [
        _choice(choice["index"], choice["message"].get("content"), choice["finish_reason"])
        for choice in body["choices"]
    ]
    return msgspec.structs.replace(answer, body=_encode(body))


async def stream_from_chat(pieces: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
    """Events of a chat as events of a completion. The chat is read to its end, and closed if this is left early."""
    reader = chat.StreamReader()
    ended = False
    try:
        async for piece in pieces:
            for chunk in reader.feed(piece):
                if event := _event(chunk, call):
                    yield event
            if reader.done and not ended:
                ended = True
                yield END
    finally:
        # Left to the garbage collector, the provider would go on working.
        if (close := getattr(pieces, "aclose", None)) is not None:
            await close()


def _event(chunk: Chunk, call: Call) -> bytes:
    body: dict[str, Any] = {
        "id": f"cmpl-{call.id}",
        "object": "text_completion",
        "created": int(call.created),
        "model": call.model,
        "choices": [],
    }
    if chunk.text or chunk.finish_reason is not None:
        body["choices"] = [_choice(0, chunk.text, chunk.finish_reason)]
    elif chunk.usage is not None:
        body["usage"] = chat.usage_body(chunk.usage)
    else:
        return b""
    return b"data: %b\n\n" % _encode(body)


def _choice(index: int, text: str | None, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text or "", "logprobs": None, "finish_reason": finish_reason}
