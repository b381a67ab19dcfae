"""Texts that go round in circles are found, and honest ones are left alone."""

import pytest

from headgate.apps.articles.repetition import parameters, repeats

HONEST = (
    "The council met on Monday. It decided to mend the bridge, which had been closed for two years. "
    "The work costs two million and is to begin in March. The mayor said that the town had waited long enough. "
    "Critics had asked for a new bridge instead. The old one was built in 1901."
)


@pytest.mark.parametrize(
    "text",
    [
        "The bridge is closed. " * 3,
        "The bridge is closed.\nThe  BRIDGE is closed.\nthe bridge is closed.",
        f"{HONEST} The bridge is closed. The bridge is closed. The bridge is closed.",
        f"{HONEST} and so on and so on and so on and so on",
        f"{HONEST} aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "市議会は月曜日に開かれた。" * 3,
        "橋の修理を決めた、橋の修理を決めた、橋の修理を決めた、橋の修理を決めた、",
    ],
)
def test_it_is_found(text: str) -> None:
    assert repeats(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Short.",
        HONEST,
        "Yes. Yes. Yes. No.",
        "The bridge is closed. The road is open. The bridge is closed.",
        "市議会は月曜日に橋の修理を決めた。費用は二億円で、三月に始まる。",
        "1. one\n2. two\n3. three\n4. four",
        "Ha ha ha ha",
    ],
)
def test_honest_texts_pass(text: str) -> None:
    """A good summary thrown away is a call paid for nothing."""
    assert not repeats(text)


def test_a_text_of_240_000_characters_is_looked_at_in_no_time() -> None:
    """Whatever a model writes, the look must not stop the loop."""
    assert not repeats("".join(f"Sentence number {number} says something. " for number in range(6_000)))


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (0.3, [0.3, 0.55, 0.8, 1.0, 1.0]),
        (0.0, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (1.5, [1.5, 1.5, 1.5, 1.5, 1.5]),
    ],
)
def test_each_regeneration_is_asked_otherwise(temperature: float, expected: list[float]) -> None:
    asked = [parameters(temperature, regeneration)["temperature"] for regeneration in range(5)]
    assert asked == expected


def test_a_model_that_takes_no_temperature_is_told_none() -> None:
    assert [parameters(None, regeneration) for regeneration in range(3)] == [{}, {}, {}]
