"""The mail as HTML. Everything in it is escaped: feeds are written by strangers. It loads nothing from anywhere."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headgate.apps.newsletter.contract import Label
from headgate.apps.newsletter.selection import Selected

HEADINGS: Final = {Label.ACT_NOW: "Act now", Label.THINK: "Worth thinking about", Label.FYI: "Good to know"}
# Where a mail program drops this, plain headings, links and paragraphs are left.
_STYLE: Final = """\
:root { color-scheme: light dark }
body { margin: 0; padding: 24px 12px; background: #f5f5f4; color: #1c1917; font: 16px/1.5 system-ui, sans-serif }
main { max-width: 600px; margin: 0 auto; padding: 28px; background: #fff; border-radius: 8px; overflow-wrap: anywhere }
h1 { font-size: 26px; line-height: 1.2; margin: 0 }
h2 { font-size: 14px; margin: 32px 0 14px; padding-top: 10px; border-top: 2px solid; text-transform: uppercase; letter-spacing: .05em }
h3 { font-size: 17px; line-height: 1.35; margin: 0 }
p { margin: 4px 0 }
article { margin: 0 0 22px }
a { color: inherit; text-decoration-thickness: 1px; text-underline-offset: 3px }
.quiet { color: #57534e; font-size: 13px }
.last { margin: 32px 0 0; padding-top: 14px; border-top: 1px solid #d6d3d1 }
.act-now { color: #b91c1c } .think { color: #1d4ed8 } .fyi { color: #57534e }
@media (max-width: 480px) { body { padding: 0 } main { padding: 20px 16px; border-radius: 0 } }
@media (prefers-color-scheme: dark) {
body { background: #0c0a09; color: #e7e5e4 } main { background: #1c1917 } .quiet, .fyi { color: #a8a29e }
.act-now { color: #f87171 } .think { color: #93c5fd } .last { border-color: #44403c } }
"""


@dataclass(frozen=True, slots=True)
class Section:
    """What is under one heading."""

    label: Label
    selected: tuple[Selected, ...]


def page(title: str, day: str, sections: Sequence[Section], *, subject: str, warning: str, note: str) -> str:
    """A whole document. Its first words are a warning and the titles: inboxes show them beside the subject."""
    titles = " · ".join(one.item.title for section in sections for one in section.selected)
    first = f'<p class="act-now"><strong>{html.escape(warning)}</strong></p>\n' if warning else ""
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(subject)}</title>
<style>
{_STYLE}</style>
</head>
<body>
<div style="display:none;max-height:0;overflow:hidden" aria-hidden="true">{html.escape(f"{warning} {titles}".strip()[:200])}</div>
<main>
{first}<h1>{html.escape(title)}</h1>
<p class="quiet">{html.escape(day)}</p>
{"".join(map(_section, sections))}\
<p class="quiet last">{html.escape(note)}</p>
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    look = section.label.lower().replace("_", "-")
    articles = "".join(map(_article, section.selected))
    return f'<section>\n<h2 class="{look}">{HEADINGS[section.label]}</h2>\n{articles}</section>\n'


def _article(one: Selected) -> str:
    """Each text finds its own direction: feeds are in all languages."""
    return f"""\
<article>
<h3 dir="auto"><a href="{html.escape(one.item.url)}">{html.escape(one.item.title)}</a></h3>
<p dir="auto">{html.escape(one.verdict.summary)}</p>
<p class="quiet">{html.escape(one.about)}</p>
</article>
"""
