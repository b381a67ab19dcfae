"""The builder: what a stranger wrote is text, wherever it stands, and what could run it cannot be built."""

import html
from typing import Any

import pytest
from server.dashboard.dashboard_stage import HOSTILE, read_html

from headgate.server.dashboard.html import Markup, document, el, group, is_local


@pytest.mark.parametrize("words", HOSTILE)
def test_words_come_back_as_they_were_and_make_no_element(words: str) -> None:
    read = read_html(str(el("p", words, el("b", [words]), title=words)))
    assert read.tags == ["p", "b"]
    assert read.text == words * 2
    assert read.attributes == [("title", words)]


@pytest.mark.parametrize(
    ("tag", "attributes"),
    [
        ("p", {"onclick": "run()"}),
        ("p", {"style": "color: red"}),
        ("iframe", {"srcdoc": "<script>"}),
        ("a", {"href": "javascript:run()"}),
        ("a", {"href": "https://elsewhere.example"}),
        ("a", {"href": "//elsewhere.example"}),
        ("a", {"href": "/\\elsewhere.example"}),
        ("a", {"href": "/\t/elsewhere.example"}),
        ("form", {"action": "https://elsewhere.example"}),
    ],
)
def test_what_could_run_or_lead_elsewhere_cannot_be_built(tag: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"nothing foreign|leads elsewhere"):
        el(tag, **attributes)


def test_a_script_has_no_content_and_a_string_is_no_markup() -> None:
    with pytest.raises(ValueError, match="script"):
        el("script", "run()")
    with pytest.raises(TypeError):
        Markup("<b>", None)


def test_none_and_false_leave_an_attribute_out_and_true_names_it() -> None:
    assert (
        str(el("input", required=True, value=None, checked=False, data_id=7))
        == '<input required data-id="7">'
    )


def test_text_that_no_encoding_can_carry_does_not_break_a_page() -> None:
    assert b"?" in document(el("p", "\ud800"))


def test_a_group_is_its_children() -> None:
    assert str(group("a", None, 7, [el("br")])) == "a7<br>"
    assert html.unescape(str(group("<"))) == "<"


@pytest.mark.parametrize("link", ["/", "/a?b=c", "?x=1", "#main"])
def test_links_to_this_server_are_local(link: str) -> None:
    assert is_local(link)
