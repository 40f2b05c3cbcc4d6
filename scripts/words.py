# SPDX-License-Identifier: MIT OR Apache-2.0
"""How this project writes: what check-docs holds pages to, and check-comments the comments in Rust."""
import re

COLUMNS, WORDS = 100, 40
RETIRED = (
    r"(?i)\b(the hall|a wing|wings|workshop|number crunchers?|hogs?|crowd|fellows?|outlook|ledger|budget of spinners"
    r"|(?:leaves?|left|leaving|keeps?|kept|keeping) the CPU|indistinguishable from)\b"
)
BEGINNINGS = r"(Who|Whoever|Of a|Of the|Of one|What is|Asked is)\b"


def sentences(paragraph):
    """What is wrong with the sentences of a paragraph."""
    for sentence in re.split(r"(?<=[.?!:;])\s+(?=[A-Z`*\[])", paragraph):
        if len(sentence.split()) > WORDS:
            yield f"a sentence of {len(sentence.split())} words: {sentence[:60]}…"
        if re.match(BEGINNINGS, sentence) and not sentence.endswith("?"):
            yield f"begin with an actor: {sentence[:60]}…"


def words(text):
    """A word that the project gave up, outside code."""
    if retired := re.search(RETIRED, re.sub(r"`[^`]*`", "", text)):
        yield f"{retired.group(0)}: the project gave this word up"
