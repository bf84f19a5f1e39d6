"""What a study found: two figures. The studies are elsewhere."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """Two figures, and the first by the second.

    Attributes:
        study: Which.
        case: Of what.
        unit: Of both figures.
        value, compared: The figures; None: there is none.
        meaning: What their ratio is, or why there is no figure.
    """

    study: str
    case: str
    unit: str
    value: float | None
    compared: float | None
    meaning: str

    @property
    def ratio(self) -> float | None:
        """Value by compared; None if one of them is missing, or the second is 0."""
        if self.value is None or not self.compared:
            return None
        return self.value / self.compared
