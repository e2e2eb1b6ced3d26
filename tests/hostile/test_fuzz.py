"""Every parser meets edited and random inputs, a few in each run of the tests; tests/soak/fuzz.py goes on for longer."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hostile.targets import KEPT, TARGETS, TOKENS

EXAMPLES = int(os.environ.get("SCALESTUDY_FUZZ_EXAMPLES", "40"))
"""Of each parser."""


def inputs(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """A right input with one to four edits, or bytes of any kind."""
    return st.one_of(
        st.builds(edited, st.sampled_from(seeds), st.lists(EDITS, min_size=1, max_size=4)), st.binary(max_size=200)
    )


EDITS = st.tuples(
    st.floats(0, 1),
    st.one_of(st.integers(0, 12), st.integers(0, 2000)),
    st.one_of(st.sampled_from(TOKENS), st.binary(max_size=6)),
)
"""Where, how many bytes are taken out, and what is put in."""


def edited(data: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    """The input after some edits."""
    for where, taken, put in edits:
        begin = int(where * len(data))
        data = data[:begin] + put + data[begin + taken :]
    return data


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_accepts_what_is_right(name: str) -> None:
    seeds = TARGETS[name].seeds()
    assert seeds
    for seed in seeds:
        TARGETS[name].run(seed)


@pytest.mark.parametrize("name", KEPT)
def test_what_was_found_before_is_refused_by_a_message(name: str) -> None:
    for data in KEPT[name]:
        TARGETS[name].run(data)


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_is_answered_with_anything_but_a_message(name: str) -> None:
    target = TARGETS[name]

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(inputs(target.seeds()))
    def fuzz(data: bytes) -> None:
        target.run(data)

    fuzz()
