"""Applications' records: written whole, found by id, unique key or a piece of text, and nobody else's."""

import asyncio

import pytest
from contracts.job_stage import NOW, a_record
from stores_under_test import Home, on_each_store

from headgate.core.errors import RecordExists
from headgate.core.ports.store import Store


async def ids(store: Store, text: str | None = None, **page: str) -> list[str]:
    listed = await store.list_records("local", "pages", limit=100, text=text, **page)
    return [record.id for record in listed]


@on_each_store
async def test_a_record_is_read_back_as_it_was_written(store: Store) -> None:
    """Its JSON, its unique key, its text in the original case, its job, its times."""
    write = a_record(
        "r", body=b'{"n":[1,null,"\\u0000"]}', unique_key="http://x/\xe4", text="Grüße AUS", job_id="j"
    )
    await store.put_records("local", [write], now=NOW)
    record = await store.get_record("local", "pages", "r")

    assert record is not None
    assert (record.tenant, record.collection, record.id) == ("local", "pages", "r")
    assert record.body == {"n": [1, None, "\x00"]}
    assert (record.unique_key, record.text, record.job_id) == ("http://x/ä", "Grüße AUS", "j")
    assert (record.created_at.timestamp(), record.updated_at.timestamp()) == (NOW, NOW)
    assert await store.find_record("local", "pages", "http://x/ä") == record
    assert await store.list_records("local", "pages", limit=9) == [record]


@on_each_store
async def test_writing_again_replaces_the_record_and_keeps_its_birth(store: Store) -> None:
    """What is not given is gone; only the job that made it is remembered."""
    await store.put_records("local", [a_record("r", unique_key="u", text="old", job_id="j")], now=NOW)
    await store.put_records("local", [a_record("r", body=b"2")], now=NOW + 5)
    record = await store.get_record("local", "pages", "r")

    assert record is not None
    assert (record.body, record.unique_key, record.text, record.job_id) == (2, None, None, "j")
    assert (record.created_at.timestamp(), record.updated_at.timestamp()) == (NOW, NOW + 5)
    assert await ids(store, "old") == []
    await store.put_records("local", [a_record("other", unique_key="u")], now=NOW)


@on_each_store
async def test_a_unique_key_is_one_records(store: Store) -> None:
    """The error says whose, so that the application can show it; all of the list is refused."""
    await store.put_records("local", [a_record("first", unique_key="u")], now=NOW)

    with pytest.raises(RecordExists, match="pages already has 'u': record first") as refusal:
        await store.put_records(
            "local", [a_record("a"), a_record("second", unique_key="u"), a_record("b")], now=NOW
        )

    assert refusal.value.record_id == "first"
    assert await ids(store) == ["first"]


@on_each_store
async def test_a_unique_key_within_one_list_is_one_records_too(store: Store) -> None:
    """The list's own records count as others do."""
    with pytest.raises(RecordExists):
        await store.put_records(
            "local", [a_record("a", unique_key="u"), a_record("b", unique_key="u")], now=NOW
        )

    assert await ids(store) == []


@on_each_store
async def test_a_record_may_keep_and_give_up_its_unique_key(store: Store) -> None:
    """Written again with its own key it is no collision; given up, the key is free at once."""
    await store.put_records("local", [a_record("a", unique_key="u")], now=NOW)
    await store.put_records("local", [a_record("a", unique_key="u", body=b"2")], now=NOW)
    await store.put_records("local", [a_record("a", unique_key="v"), a_record("b", unique_key="u")], now=NOW)

    found = await store.find_record("local", "pages", "u")
    assert found is not None
    assert found.id == "b"


@on_each_store
async def test_records_are_one_tenants_and_one_collections(store: Store) -> None:
    """The same id and the same unique key, three times, without a word about each other."""
    for tenant, collection in (("local", "pages"), ("acme", "pages"), ("local", "feeds")):
        body = f'"{tenant}/{collection}"'.encode()
        write = a_record("r", collection=collection, unique_key="u", text="t", body=body)
        await store.put_records(tenant, [write], now=NOW)

    mine = await store.get_record("local", "pages", "r")
    theirs = await store.find_record("acme", "pages", "u")
    assert mine is not None
    assert theirs is not None
    assert (mine.body, theirs.body) == ("local/pages", "acme/pages")
    assert len(await store.list_records("local", "pages", limit=9, text="t")) == 1
    assert await store.delete_record("acme", "pages", "r")
    assert await store.get_record("local", "pages", "r") is not None
    assert await store.get_record("acme", "pages", "r") is None


@on_each_store
async def test_a_deleted_record_is_gone_with_its_unique_key(store: Store) -> None:
    """A bookmark that was removed can be made again."""
    await store.put_records("local", [a_record("a", unique_key="u")], now=NOW)

    assert await store.delete_record("local", "pages", "a")
    assert not await store.delete_record("local", "pages", "a")
    assert await store.find_record("local", "pages", "u") is None
    await store.put_records("local", [a_record("b", unique_key="u")], now=NOW)


@on_each_store
async def test_pages_of_records_go_from_the_highest_id_down(store: Store) -> None:
    """By id, byte by byte: every database must agree on which page a record is on."""
    names = ["10", "9", "A", "Z", "_", "a", "b", "ä", "日", "a-b", "a b"]
    await store.put_records("local", [a_record(name) for name in names], now=NOW)
    expected = sorted(names, key=lambda name: name.encode(), reverse=True)
    told: list[str] = []
    after: str | None = None
    while page := await store.list_records("local", "pages", limit=4, after=after):
        told += [record.id for record in page]
        after = told[-1]

    assert told == expected


@on_each_store
async def test_a_page_goes_on_after_an_id_that_is_gone(store: Store) -> None:
    """Somebody deletes while somebody pages."""
    await store.put_records("local", [a_record(name) for name in "abcd"], now=NOW)
    await store.delete_record("local", "pages", "c")

    assert await ids(store, after="c") == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pumpkin", ["c", "a"]),
        ("PUMPKIN", ["c", "a"]),
        ("kin sou", ["a"]),
        ("100%", ["b"]),
        ("_", ["b"]),
        ("%", ["b"]),
        ("\\", ["e"]),
        ("'", ["e"]),
        ("straße", ["d"]),
        ("STRASSE", ["d"]),
        ("ÄPFEL", ["d"]),
        ("nothing", []),
    ],
)
@on_each_store
async def test_a_piece_of_text_is_found_whatever_its_case(
    store: Store, text: str, expected: list[str]
) -> None:
    """A piece is a piece: what databases take for wildcards are plain characters here."""
    texts = {
        "a": "Pumpkin soup",
        "b": "100% rye_bread",
        "c": "more PUMPKIN",
        "d": "Äpfel von der Hauptstraße",
        "e": "back\\slash and 'quote'",
        "f": None,
    }
    await store.put_records("local", [a_record(name, text=told) for name, told in texts.items()], now=NOW)

    assert await ids(store, text) == expected


@on_each_store
async def test_searching_pages_too(store: Store) -> None:
    """The next page of a search goes on where the first ended, with the same words."""
    await store.put_records(
        "local",
        [a_record(f"r{number}", text=f"{'even' if number % 2 == 0 else 'odd'}") for number in range(9)],
        now=NOW,
    )
    first = await store.list_records("local", "pages", limit=2, text="EVEN")
    second = await store.list_records("local", "pages", limit=9, text="EVEN", after=first[-1].id)

    assert [record.id for record in first + second] == ["r8", "r6", "r4", "r2", "r0"]


@on_each_store
async def test_nothing_written_is_nothing(store: Store) -> None:
    """Empty lists and empty collections are no errors."""
    await store.put_records("local", [], now=NOW)

    assert await store.list_records("local", "pages", limit=9) == []
    assert await store.get_record("local", "pages", "r") is None
    assert await store.find_record("local", "pages", "u") is None


@on_each_store
async def test_concurrent_writers_of_one_unique_key_leave_one_winner(store: Store, home: Home) -> None:
    """At two processes: one record has the key, and everybody else was told whose it is."""
    stores = [store, await home.open()]

    async def write(number: int) -> str:
        try:
            await stores[number % 2].put_records("local", [a_record(f"r{number}", unique_key="u")], now=NOW)
        except RecordExists as error:
            return error.record_id
        return f"r{number}"

    told = await asyncio.gather(*(write(number) for number in range(60)))

    assert len(set(told)) == 1
    assert await ids(store) == [told[0]]
