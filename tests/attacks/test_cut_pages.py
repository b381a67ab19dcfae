"""A job's input on its page: what is shown of a long one is how the whole would begin, whatever it is made of."""

import html
import re
from typing import Any, Final

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.visible import escaped_json
from headgate.server.dashboard.foreign import json_block

_leaf: Final = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9)
_text: Final = st.text('ab"\\\\[]{},: \n€', max_size=12)
_value: Final = st.recursive(
    _leaf | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=30,
)


@given(_value, st.integers(1, 200))
def test_a_cut_value_begins_as_the_whole(value: Any, most: int) -> None:
    page = str(json_block(value, most=most))
    shown = re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    assert shown is not None
    text = html.unescape(shown[1])
    whole = msgspec.json.format(msgspec.json.encode(value), indent=2)
    if len(whole) <= most:
        assert text == escaped_json(whole.decode())
    else:
        assert text == escaped_json(whole[:most].decode(errors="ignore")) + "…"
