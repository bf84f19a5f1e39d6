"""Texts of dims for property tests: every operator and function, of the symbols b and s."""

from hypothesis import strategies as st


def grown(inner):
    pair = st.tuples(inner, inner)
    return st.one_of(
        pair.map("({0[0]} + {0[1]})".format),
        pair.map("({0[0]} - {0[1]})".format),
        pair.map("({0[0]}*{0[1]})".format),
        pair.map("({0[0]} // {0[1]})".format),
        pair.map("({0[0]} % {0[1]})".format),
        pair.map("max({0[0]}, {0[1]})".format),
        pair.map("min({0[0]}, {0[1]})".format),
        inner.map("-{}".format),
        st.tuples(inner, st.integers(0, 3)).map("({0[0]})**{0[1]}".format),
    )


ATOMS = st.one_of(st.sampled_from(["s", "b"]), st.integers(0, 9).map(str))
TEXTS = st.recursive(ATOMS, grown, max_leaves=6)
