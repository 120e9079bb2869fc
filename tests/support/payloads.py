"""Payloads of notifications from strangers: some that did harm once, and many similar to ours."""

from __future__ import annotations

from hypothesis import strategies as st

HOSTILE = [
    "",
    " ",
    "²",
    "1_",
    "² default",
    "1_ default",
    "1_0 default",
    "1abc default",
    "1abc",
    "nan default",
    "inf default",
    "1e400 default",
    "0x10 default",
    "٣ default",
    "1. default",
    ".5 default",
    "1.5.5 default",
    "+ default",
    "!sync default",
    "5!SYNC default",
    "5!thread default",
    "5+! default",
    "5++ default",
    "5 sync default",
    "5  default",
    "5 default\n",
    "5 behind behind default",
    "5\tdefault",
    "9" * 5_000 + " default",
    "5 " + "x" * 5_000,
    "cancel ",
    "cancel default",
    "now default",
    "now sync a b",
    "place 3",
    "5+ default",
    "cancel 00000000-0000-0000-0000-00000000000g",
    "00000000000000000000000000000007",
    "{00000000-0000-0000-0000-000000000007}",
    "urn:uuid:00000000-0000-0000-0000-000000000007",
    "00000000-0000-0000-0000-000000000007  00000000-0000-0000-0000-000000000007",
    '{"queue": "default"}',
]

pieces = st.sampled_from(
    [
        "0",
        "5",
        "-",
        "+",
        "!",
        ".",
        " ",
        "1763748000.5",
        "Infinity",
        "NaN",
        "1e9",
        "_",
        "²",
        "sync",
        "async",
        "behind",
    ]
    + ["cancel", "now", "place"]
    + ["default", "mail", "*", "00000000-0000-0000-0000-000000000007", "\n", "\t", ",", "9" * 400]
)
# PostgreSQL passes on text of its encoding: no NUL, no lone surrogates. The parser gets those as
# well.
payloads = st.one_of(
    st.lists(pieces, max_size=8).map("".join), st.text(max_size=50), st.sampled_from(HOSTILE)
)
sendable = payloads.filter(
    lambda text: "\0" not in text and text.isprintable() and len(text.encode()) < 8_000
)
