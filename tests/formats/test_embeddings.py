"""OpenAI's embeddings: one vector for each text, alone and when several requests are sent as one."""

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.answer import Answer, Usage
from headgate.core.call import Call, Format, count_entries
from headgate.core.errors import InvalidRequest
from headgate.formats import embeddings
from headgate.formats.reading import NoAnswer


def a_call(*texts: Any, **fields: Any) -> Call:
    return Call(id="r1", model="m", format=Format.EMBEDDINGS, fields={"input": list(texts), **fields})


def given_input(value: Any) -> Call:
    return Call(id="r1", model="m", format=Format.EMBEDDINGS, fields={"input": value})


def as_it_came(call: Call, *, size_bytes: int = 100) -> Call:
    fields = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in call.fields.items()}
    return msgspec.structs.replace(call, fields=fields, size_bytes=size_bytes)


def a_body(*items: Any, **more: Any) -> bytes:
    """Items are vectors, numbered as they come, or whole items."""
    data = [
        item if isinstance(item, dict) else {"object": "embedding", "index": index, "embedding": item}
        for index, item in enumerate(items)
    ]
    return json.dumps({"object": "list", "model": "upstream", "data": data, **more}).encode()


# ---- Requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("came", [False, True])
def test_a_request_is_read_once_and_alike_as_values_and_as_json(came: bool) -> None:
    call = a_call("a", "b", dimensions=8, encoding_format="base64")
    if came:
        call = as_it_came(call)
    request = embeddings.read_request(call)

    assert request.texts == ("a", "b")
    assert request.params == {"dimensions": 8, "encoding_format": "base64"}
    assert embeddings.read_request(call) is request is call.read
    assert "input" in call.fields


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "input"),
        (7, "input"),
        ([], "input"),
        ("", "input[0]"),
        (["a", ""], "input[1]"),
        ([1], "input[0]"),
    ],
)
def test_what_makes_no_request_is_rejected_with_its_place(value: Any, param: str) -> None:
    for call in (given_input(value), as_it_came(given_input(value))):
        with pytest.raises(InvalidRequest) as rejected:
            embeddings.read_request(call)
        assert rejected.value.param == param


def test_a_request_without_input_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="input"):
        embeddings.read_request(Call(id="r1", model="m", format=Format.EMBEDDINGS, fields={}))


# ---- Answers, read --------------------------------------------------------------------------------------------


def test_an_answer_is_kept_byte_by_byte() -> None:
    body = a_body([0.1, 1e-5], [2], usage={"prompt_tokens": 3, "total_tokens": 3})
    answer = embeddings.read_answer(body, a_call("a", "b"))

    assert answer.body is body
    assert (answer.usage, answer.flaw) == (Usage(3, 0), None)
    assert answer.vectors == [[0.1, 1e-5], [2.0]]


def test_an_answer_in_base64_reads_as_its_numbers() -> None:
    text = base64.b64encode(struct.pack("<2f", 0.5, -2.0)).decode()

    assert [list(vector) for vector in embeddings.read_answer(a_body(text), a_call("a")).vectors] == [
        [0.5, -2.0]
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no list of embeddings"),
        (b"[]", "no list of embeddings"),
        (b'{"object": "list"}', "no list of embeddings"),
        (b'{"data": [{"index": 0}, {"index": 1}]}', "no list of embeddings"),
        (b"[" * 100_000, "no list of embeddings"),
        (a_body([1.0], [2.0], error={"message": "no"}), "is an error"),
        (a_body(), "0 embeddings for 2 texts"),
        (a_body([1.0]), "1 embeddings for 2 texts"),
        (a_body([1.0], [2.0], [3.0]), "3 embeddings for 2 texts"),
        (a_body({"index": 1, "embedding": [1.0]}, {"index": 1, "embedding": [2.0]}), "not numbered"),
        (a_body({"index": 1, "embedding": [1.0]}, {"index": 2, "embedding": [2.0]}), "not numbered"),
        (a_body({"index": -1, "embedding": [1.0]}, {"index": 0, "embedding": [2.0]}), "not numbered"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_body_that_does_not_fit_its_texts_says_why(body: bytes, says: str) -> None:
    """A missing vector shifts all that follow: each text would be filed under its neighbour's meaning."""
    for call in (a_call("a", "b"), as_it_came(a_call("a", "b"))):
        with pytest.raises(NoAnswer, match=says):
            embeddings.read_answer(body, call)


@pytest.mark.parametrize("numbering", [{}, {"index": None}, {"index": 0}])
def test_servers_that_number_no_vector_are_taken_at_their_order(numbering: dict[str, Any]) -> None:
    body = a_body(*({"embedding": [float(number)], **numbering} for number in range(3)))

    assert embeddings.read_answer(body, a_call("a", "b", "c")).vectors == [[0.0], [1.0], [2.0]]


@pytest.mark.parametrize("empty", [[], None, ""])
def test_an_empty_vector_is_a_flaw(empty: Any) -> None:
    answer = embeddings.read_answer(a_body([1.0], empty), a_call("a", "b"))

    assert (answer.blank, answer.flaw) == (True, "vector 1 is empty")


@pytest.mark.parametrize("texts", ["a", [1, 2, 3], ["a"], [[1, 2, 3]]], ids=str)
def test_one_text_gets_one_vector_however_it_is_written(texts: Any) -> None:
    for call in (given_input(texts), as_it_came(given_input(texts))):
        assert embeddings.read_answer(a_body([1.0]), call).vectors == [[1.0]]


# ---- Answers, written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("came", [False, True])
def test_an_answer_is_written_as_openai_does(came: bool) -> None:
    call = a_call("a", "b")
    answer = embeddings.write_answer(
        as_it_came(call) if came else call, [[0.5, 1.0], msgspec.Raw(b"[2.5]")], Usage(3, 0)
    )

    assert answer.json() == {
        "object": "list",
        "model": "m",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [0.5, 1.0]},
            {"object": "embedding", "index": 1, "embedding": [2.5]},
        ],
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert (answer.usage, answer.flaw, answer.vectors) == (Usage(3, 0), None, [[0.5, 1.0], [2.5]])


def test_a_missing_usage_is_estimated_and_says_so() -> None:
    call = a_call("x" * 8, "x")
    answer = embeddings.write_answer(call, [[1.0], [2.0]], None)

    assert answer.usage == Usage(3, 0, estimated=True)
    assert answer.json()["usage"] == {"prompt_tokens": 3, "total_tokens": 3, "estimated": True}
    assert embeddings.read_answer(answer.body, call).usage == answer.usage


@pytest.mark.parametrize(
    ("vectors", "flaw"),
    [
        ([], "vectors in the answer: 0, texts in the request: 2"),
        ([[1.0]], "vectors in the answer: 1, texts in the request: 2"),
        ([[1.0], [1.0], [1.0]], "vectors in the answer: 3, texts in the request: 2"),
        ([[1.0], []], "vector 1 is empty"),
        ([[], [1.0]], "vector 0 is empty"),
        ([msgspec.Raw(b"[]"), [1.0]], "vector 0 is empty"),
        ([msgspec.Raw(b"[1]"), [1.0]], None),
    ],
)
def test_vectors_that_do_not_fit_their_texts_are_a_flaw(vectors: Any, flaw: str | None) -> None:
    for call in (a_call("a", "b"), as_it_came(a_call("a", "b"))):
        assert embeddings.write_answer(call, vectors, None).flaw == flaw


@pytest.mark.parametrize(
    "vectors",
    [None, 7, "ab", b"ab", ["ab", "cd"], [1.0, 2.0], [[1.0], None], {"a": 1}, [[1.0], {"b": 1}]],
    ids=str,
)
def test_only_a_list_of_vectors_is_written(vectors: Any) -> None:
    """A careless provider must not hand its callers what they cannot read."""
    with pytest.raises(TypeError, match="each a list of numbers"):
        embeddings.write_answer(a_call("a", "b"), vectors, None)


# ---- Several requests in one ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (b'"one [text"', [b'"one [text"']),
        (b'["a"]', [b'"a"']),
        (b'[ "a" ]', [b'"a"']),
        (b'[\n\t["a"]]', [b'["a"]']),
        (b'["a", "\\u00e9"]', [b'"a"', b'"\\u00e9"']),
        (b"[1, 2, 3]", [b"[1, 2, 3]"]),
        (b"[[1, 2], [3]]", [b"[1, 2]", b"[3]"]),
        (b"[[1, 2]]", [b"[1, 2]"]),
        (b'["a", [1]]', [b'"a"', b"[1]"]),
        (b"null", [b"null"]),
        (b"[]", [b"[]"]),
        (b"7", [b"7"]),
        (b'{"text": "x"}', [b'{"text": "x"}']),
    ],
)
def test_the_entries_of_a_body_are_its_own_bytes(value: bytes, entries: list[bytes]) -> None:
    assert [bytes(entry) for entry in embeddings.entries_of(given_input(msgspec.Raw(value)))] == entries


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        ("text", ["text"]),
        (["a"], ["a"]),
        (("a", "b"), ["a", "b"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (None, []),
        ([], []),
    ],
    ids=str,
)
def test_the_entries_of_values_are_the_values(value: Any, entries: list[Any]) -> None:
    assert list(embeddings.entries_of(given_input(value))) == entries


@given(
    st.text(min_size=1)
    | st.lists(st.text(max_size=5), min_size=1, max_size=5)
    | st.lists(st.integers(0, 9), min_size=1, max_size=5)
    | st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=5),
    st.sampled_from([None, 0, 2, "\t"]),
)
def test_there_are_as_many_entries_as_vectors_are_due(value: Any, indent: Any) -> None:
    """However the JSON is spaced."""
    plain = given_input(value)
    came = given_input(msgspec.Raw(json.dumps(value, indent=indent).encode()))

    assert len(embeddings.entries_of(plain)) == count_entries(value)
    assert len(embeddings.entries_of(came)) == len(embeddings.entries_of(plain))
    decoded = [msgspec.json.decode(entry) for entry in embeddings.entries_of(came)]
    assert decoded == list(embeddings.entries_of(plain))


def test_only_the_input_may_differ_in_requests_that_are_sent_as_one() -> None:
    first = a_call("a", dimensions=8, user="u")

    assert embeddings.other_fields(first) == embeddings.other_fields(a_call("b", user="u", dimensions=8))
    others: list[dict[str, Any]] = [{}, {"dimensions": 8}, {"dimensions": 9, "user": "u"}, {"user": "u"}]
    for fields in others:
        assert embeddings.other_fields(first) != embeddings.other_fields(a_call("a", **fields))


def test_fields_that_came_as_json_are_the_same_only_byte_by_byte() -> None:
    first = as_it_came(a_call("a", dimensions=8))
    spaced = msgspec.structs.replace(first, fields={**first.fields, "dimensions": msgspec.Raw(b"8.0")})

    assert embeddings.other_fields(first) == embeddings.other_fields(as_it_came(a_call("b", dimensions=8)))
    assert embeddings.other_fields(first) != embeddings.other_fields(spaced)


@pytest.mark.parametrize("came", [False, True])
def test_inputs_that_are_joined_read_as_one_list(came: bool) -> None:
    calls = [given_input("a"), given_input(["b", "c"]), given_input([1, 2]), given_input([[3]])]
    joined = embeddings.join_inputs([as_it_came(call) if came else call for call in calls])

    assert isinstance(joined, msgspec.Raw) == came
    assert (msgspec.json.decode(joined) if came else joined) == ["a", "b", "c", [1, 2], [3]]
    assert count_entries(joined) == 5


def test_texts_that_are_joined_are_not_written_anew() -> None:
    call = given_input(msgspec.Raw(b'[ "\\u00e9\\/" ]'))

    assert bytes(embeddings.join_inputs([call, call])) == b'["\\u00e9\\/","\\u00e9\\/"]'
    assert embeddings.read_request(given_input(embeddings.join_inputs([call]))).texts == ("é/",)


def split(calls: Sequence[Call], body: bytes, usage: Usage | None) -> list[Answer]:
    return embeddings.split_answer(Answer(body=body, usage=usage), calls)


def test_each_request_gets_its_own_vectors_numbered_from_the_start() -> None:
    calls = [a_call("a"), as_it_came(a_call("b", "c")), given_input("d")]
    body = a_body([1], [2], [3], [4], usage={"prompt_tokens": 9, "total_tokens": 9}, **{"x-new": 7})
    answers = split(calls, body, Usage(9, 0))

    assert [answer.vectors for answer in answers] == [[[1.0]], [[2.0], [3.0]], [[4.0]]]
    assert [[item["index"] for item in answer.json()["data"]] for answer in answers] == [[0], [0, 1], [0]]
    assert all(answer.json()["x-new"] == 7 and answer.json()["model"] == "upstream" for answer in answers)
    assert all(answer.flaw is None for answer in answers)


def test_the_vectors_are_given_out_by_their_numbers_not_by_their_places() -> None:
    items = [{"index": index, "embedding": [float(index)]} for index in (2, 0, 1)]
    answers = split([a_call("a"), a_call("b", "c")], a_body(*items), None)

    assert [answer.vectors for answer in answers] == [[[0.0]], [[1.0], [2.0]]]


@pytest.mark.parametrize("numbering", [{}, {"index": None}, {"index": 0}])
def test_or_by_their_places_where_they_have_no_numbers(numbering: dict[str, Any]) -> None:
    items = [{"embedding": [float(number)], **numbering} for number in range(3)]
    answers = split([a_call("a"), a_call("b", "c")], a_body(*items), None)

    assert [answer.vectors for answer in answers] == [[[0.0]], [[1.0], [2.0]]]


def test_numbers_are_passed_on_as_they_were_written() -> None:
    """A vector that was read and written again could differ in its last digit."""
    body = b'{"data":[{"index":0,"embedding":[1.0e-3, 0.30000000000000004]},{"index":1,"embedding":"AAAA"}]}'
    first, second = split([a_call("a"), a_call("b")], body, None)

    assert b"[1.0e-3, 0.30000000000000004]" in first.body
    assert b'"AAAA"' in second.body


def test_usage_is_shared_out_by_size() -> None:
    calls = [a_call("x" * 40), as_it_came(a_call("y"), size_bytes=120)]
    answers = split(calls, a_body([1], [2], usage={"prompt_tokens": 80}), Usage(80, 0))

    assert [answer.usage for answer in answers] == [Usage(20, 0), Usage(60, 0)]
    reported = [answer.json()["usage"] for answer in answers]
    assert reported == [{"prompt_tokens": tokens, "total_tokens": tokens} for tokens in (20, 60)]


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.integers(0, 10_000), st.booleans())
def test_no_token_is_lost_or_counted_twice(sizes: list[int], tokens: int, estimated: bool) -> None:
    calls = [a_call("x" * size) for size in sizes]
    usage = Usage(tokens, 0, estimated=estimated)
    answers = split(calls, a_body(*([1.0] for _ in sizes)), usage)

    shares = [answer.usage for answer in answers if answer.usage is not None]
    assert len(shares) == len(sizes)
    assert sum(share.input_tokens for share in shares) == tokens
    assert all(share.estimated == estimated and share.input_tokens >= 0 for share in shares)
    reported = [answer.json()["usage"].get("estimated", False) for answer in answers]
    assert reported == [estimated] * len(sizes)


def test_an_unknown_usage_stays_unknown() -> None:
    answers = split([a_call("a"), a_call("b")], a_body([1], [2], usage={"prompt_tokens": "?"}), None)

    assert [answer.usage for answer in answers] == [None, None]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"no JSON", "no list of embeddings"),
        (b"[]", "no list of embeddings"),
        (b"{}", "no list of embeddings"),
        (b'{"data": [{"index": 0}, {"index": 1}]}', "no list of embeddings"),
        (a_body([1]), "1 embeddings for 2 texts"),
        (a_body([1], [2], [3]), "3 embeddings for 2 texts"),
    ],
    ids=str,
)
def test_what_cannot_be_given_out_says_why(body: bytes, says: str) -> None:
    """A custom provider may return anything, and no caller may get the vector of another."""
    with pytest.raises(NoAnswer, match=says):
        split([a_call("a"), a_call("b")], body, None)


def test_fields_that_cannot_be_written_match_no_other_request() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]

    for value in (object(), {object(): 1}, nested):
        assert embeddings.other_fields(a_call("a", strange=value)) is None
