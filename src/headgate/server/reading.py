"""What a request says in its query, its headers and its JSON body, read strictly: every mistake names its field."""

import asyncio
import re
from collections import Counter
from typing import Annotated, Any, Final, TypeVar, get_origin

import msgspec
from starlette.requests import ClientDisconnect, Request

from headgate.calls.requests import LARGE_BYTES
from headgate.core.errors import InvalidRequest
from headgate.core.json_trouble import check_json, why_no_json
from headgate.core.waiting import RequestBody
from headgate.server.access import CALLER, Caller
from headgate.server.http import Exchange
from headgate.server.http.exchange import ClientGone
from headgate.server.inference.head import read_key
from headgate.server.whole_body import BODIES, read_whole

T = TypeVar("T")
Q = TypeVar("Q", bound=msgspec.Struct)
Word = Annotated[str, msgspec.Meta(min_length=1)]
LONGEST_SHOWN_CHARS: Final = 100
"""Of a name that a stranger made up."""
MAX_ERROR_CHARS: Final = 1024
"""Of msgspec's message, which quotes names of any length."""
_PLACE: Final = re.compile(r" - at `(?:key in `)?\$\.?([^`]*)`")
_FIELD: Final = re.compile(r"^Object (?:contains unknown|missing required) field `([^`]*)`")


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A query or a body that has nothing to say."""


def read_query(request: Request, kind: type[Q]) -> Q:
    """The query as a record; what the record does not know is refused."""
    pairs = request.query_params.multi_items()
    given = dict(pairs)
    if len(given) != len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise InvalidRequest(f"{twice[:LONGEST_SHOWN_CHARS]} comes twice", param=twice[:LONGEST_SHOWN_CHARS])
    numbers = {field.encode_name for field in msgspec.structs.fields(kind) if _is_number(field.type)}
    told = {name: _number(value) if name in numbers else value for name, value in given.items()}
    try:
        return msgspec.convert(told, kind)
    except msgspec.ValidationError as error:
        raise _misfit(error) from None


async def read_body(
    request: Request, decoder: msgspec.json.Decoder[T], *, empty: bytes = b"", root: str = ""
) -> T:
    """The body as what the decoder knows; `empty` stands for none, and `root` is what a list is called in errors.

    How large it may be is the front door's business.
    """
    read_query(request, Nothing)  # All of it is said in the body.
    body = await _body(request)
    check_json(body)
    if len(body) > LARGE_BYTES:
        await asyncio.sleep(0)
    try:
        read = decoder.decode(body or empty)
    except msgspec.ValidationError as error:
        raise _misfit(error, root) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {why_no_json(body, error)}") from None
    if len(body) > LARGE_BYTES:
        await asyncio.sleep(0)
    return read


async def _body(request: Request) -> bytes:
    exchange: Exchange = request.scope["extensions"]["headgate"]
    caller: Caller | None = request.scope.get(CALLER)
    counted = RequestBody(request.scope[BODIES], "" if caller is None else caller.tenant)
    try:
        return await read_whole(exchange, await exchange.piece(), counted)
    except ClientGone:
        raise ClientDisconnect from None


def read_idempotency_key(request: Request) -> str | None:
    keys = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
    if len(keys) > 1:
        raise InvalidRequest("the header idempotency-key comes twice", param="idempotency-key")
    return read_key(keys[0]) if keys else None


def _is_number(kind: Any) -> bool:
    """Also one with bounds."""
    return (kind.__origin__ if get_origin(kind) is Annotated else kind) in {int, float}


def _number(value: str) -> float | str:
    """As JSON would say it. msgspec's own lenience takes `null` for nothing and numbers for dates."""
    try:
        return msgspec.json.decode(value, type=int | float)
    except (msgspec.MsgspecError, UnicodeError):
        return value


def _misfit(error: msgspec.ValidationError, root: str = "") -> InvalidRequest:
    told = str(error)
    if len(told) > MAX_ERROR_CHARS:
        # Its beginning says what is wrong, its end says where.
        told = f"{told[: MAX_ERROR_CHARS // 2]}…{told[-MAX_ERROR_CHARS // 2 :]}"
    place, field = _PLACE.search(told), _FIELD.match(told)
    where = place[1] if place else ""
    parts = [f"{root}{where}" if where.startswith("[") else where, field[1] if field else ""]
    param = ".".join(filter(None, parts))[:LONGEST_SHOWN_CHARS] or None
    what = _PLACE.sub("", told)
    if field and len(field[1]) > LONGEST_SHOWN_CHARS:
        what = what.replace(field[1], f"{field[1][:LONGEST_SHOWN_CHARS]}…")
    return InvalidRequest(what if param is None else f"{param}: {what}", param=param)
