"""Bytes into text, in the encodings that browsers know and in no other.

Python knows many more, some of which are none for texts and take more than linear time (`punycode`, `idna`), or
unpack what was packed (`zlib`). The labels are those of https://encoding.spec.whatwg.org/#names-and-labels.
"""

import codecs
import re
from collections.abc import Iterator
from typing import Final

_LABELS: Final = {
    "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8 utf-8 utf8 x-unicode20utf8",
    "ibm866": "866 cp866 csibm866 ibm866",
    "iso8859-2": "csisolatin2 iso-8859-2 iso-ir-101 iso8859-2 iso88592 iso_8859-2 iso_8859-2:1987 l2 latin2",
    "iso8859-3": "csisolatin3 iso-8859-3 iso-ir-109 iso8859-3 iso88593 iso_8859-3 iso_8859-3:1988 l3 latin3",
    "iso8859-4": "csisolatin4 iso-8859-4 iso-ir-110 iso8859-4 iso88594 iso_8859-4 iso_8859-4:1988 l4 latin4",
    "iso8859-5": "csisolatincyrillic cyrillic iso-8859-5 iso-ir-144 iso8859-5 iso88595 iso_8859-5 iso_8859-5:1988",
    "iso8859-6": "arabic asmo-708 csiso88596e csiso88596i csisolatinarabic ecma-114 iso-8859-6 iso-8859-6-e"
    " iso-8859-6-i iso-ir-127 iso8859-6 iso88596 iso_8859-6 iso_8859-6:1987",
    "iso8859-7": "csisolatingreek ecma-118 elot_928 greek greek8 iso-8859-7 iso-ir-126 iso8859-7 iso88597 iso_8859-7"
    " iso_8859-7:1987 sun_eu_greek",
    "iso8859-8": "csiso88598e csiso88598i csisolatinhebrew hebrew iso-8859-8 iso-8859-8-e iso-8859-8-i iso-ir-138"
    " iso8859-8 iso88598 iso_8859-8 iso_8859-8:1988 logical visual",
    "iso8859-10": "csisolatin6 iso-8859-10 iso-ir-157 iso8859-10 iso885910 l6 latin6",
    "iso8859-13": "iso-8859-13 iso8859-13 iso885913",
    "iso8859-14": "iso-8859-14 iso8859-14 iso885914",
    "iso8859-15": "csisolatin9 iso-8859-15 iso8859-15 iso885915 iso_8859-15 l9",
    "iso8859-16": "iso-8859-16",
    "koi8-r": "cskoi8r koi koi8 koi8-r koi8_r",
    "koi8-u": "koi8-ru koi8-u",
    "mac-roman": "csmacintosh mac macintosh x-mac-roman",
    "cp874": "dos-874 iso-8859-11 iso8859-11 iso885911 tis-620 windows-874",
    "cp1250": "cp1250 windows-1250 x-cp1250",
    "cp1251": "cp1251 windows-1251 x-cp1251",
    "cp1252": "ansi_x3.4-1968 ascii cp1252 cp819 csisolatin1 ibm819 iso-8859-1 iso-ir-100 iso8859-1 iso88591"
    " iso_8859-1 iso_8859-1:1987 l1 latin1 us-ascii windows-1252 x-cp1252",
    "cp1253": "cp1253 windows-1253 x-cp1253",
    "cp1254": "cp1254 csisolatin5 iso-8859-9 iso-ir-148 iso8859-9 iso88599 iso_8859-9 iso_8859-9:1989 l5 latin5"
    " windows-1254 x-cp1254",
    "cp1255": "cp1255 windows-1255 x-cp1255",
    "cp1256": "cp1256 windows-1256 x-cp1256",
    "cp1257": "cp1257 windows-1257 x-cp1257",
    "cp1258": "cp1258 windows-1258 x-cp1258",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "gb18030": "chinese csgb2312 csiso58gb231280 gb18030 gb2312 gb_2312 gb_2312-80 gbk iso-ir-58 x-gbk",
    "big5hkscs": "big5 big5-hkscs cn-big5 csbig5 x-x-big5",
    "euc-jp": "cseucpkdfmtjapanese euc-jp x-euc-jp",
    "iso2022-jp": "csiso2022jp iso-2022-jp",
    "cp932": "csshiftjis ms932 ms_kanji shift-jis shift_jis sjis windows-31j x-sjis",
    "cp949": "cseuckr csksc56011987 euc-kr iso-ir-149 korean ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601"
    " windows-949",
    "utf-16-be": "unicodefffe utf-16be",
    "utf-16-le": "csunicode iso-10646-ucs-2 ucs-2 unicode unicodefeff utf-16 utf-16le",
}
CODECS: Final = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}
"""Python's codec by the label of a page, in lower case."""
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (b"\0<\0?", "utf-16-be"),
    (b"<\0?\0", "utf-16-le"),
)
_DECLARATION: Final = re.compile(r"\A\s{0,99}<\?xml\s[^>]{0,1000}>")
_SAID_INSIDE: Final = re.compile(
    rb"<\?xml[^>]{1,200}?encoding\s{0,9}=\s{0,9}[\"']([\w.:-]{1,40})|<meta[^>]{1,300}?charset\s{0,9}=\s{0,9}[\"']?([\w.:-]{1,40})",
    re.IGNORECASE,
)
_LOOKED_AT_BYTES: Final = 1024
"""As far as browsers look for it."""
_FALLBACK: Final = "cp1252"


def decode(data: bytes, label: str | None = None, *, markup: bool = False) -> str:
    """A byte order mark decides, then the `label`, then what `markup` says of itself.

    What nothing is known of is UTF-8 if it can be, else windows-1252, as in browsers. An XML declaration is left out:
    it names an encoding that the text no longer has.
    """
    codec = _codec_of(data, label, markup=markup)
    if codec is not None:
        text = data.decode(codec, "replace")
    else:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = data.decode(_FALLBACK, "replace")
    text = text.removeprefix("\ufeff")
    return _DECLARATION.sub("", text) if markup else text


def _codec_of(data: bytes, label: str | None, *, markup: bool) -> str | None:
    for mark, codec in _MARKS:
        if data.startswith(mark):
            return codec
    labels = [label or "", *(_said_inside(data) if markup else ())]
    known = (CODECS.get(said.strip().lower()) for said in labels)
    return next(filter(None, known), None)


def _said_inside(data: bytes) -> Iterator[str]:
    for said in _SAID_INSIDE.finditer(data, 0, _LOOKED_AT_BYTES):
        label = (said[1] or said[2]).decode("ascii", "replace")
        # It could be read as ASCII, so it is no such encoding.
        yield "utf-8" if CODECS.get(label.lower(), "").startswith("utf-16") else label
