"""The result of a study: two figures. It runs no study."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """Two figures and their ratio.

    Attributes:
        study: The name of the study.
        case: The case that was measured.
        unit: The unit of both figures.
        value, compared: The figures; None: it was not measured.
        meaning: What the ratio means, or why a figure is missing.
    """

    study: str
    case: str
    unit: str
    value: float | None
    compared: float | None
    meaning: str

    @property
    def ratio(self) -> float | None:
        """`value` divided by `compared`; None if one of them is missing, or `compared` is 0."""
        if self.value is None or not self.compared:
            return None
        return self.value / self.compared
