"""Strings of dims for property tests: every operator and function, of the symbols b and s.

Squares are the only powers, so that nothing drawn leaves int64.
"""

from hypothesis import strategies as st

_ATOMS = st.one_of(st.sampled_from(["s", "b"]), st.integers(0, 9).map(str))
_FORMS = (
    "({} + {})",
    "({} - {})",
    "({}*{})",
    "({} // {})",
    "({} % {})",
    "max({}, {})",
    "min({}, {})",
    "-{}",
    "({})**2",
)


@st.composite
def dim_texts(draw, depth=3):
    if depth == 0 or draw(st.booleans()):
        return draw(_ATOMS)
    form = draw(st.sampled_from(_FORMS))
    parts = [draw(dim_texts(depth - 1)) for _ in range(form.count("{}"))]
    return form.format(*parts)


TEXTS = dim_texts()
