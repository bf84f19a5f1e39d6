"""What a study found: two figures. The studies are elsewhere."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """Two figures, and the first by the second.

    Attributes:
        study: Which.
        case: Of what.
        unit: Of both figures.
        value, compared: The figures.
        meaning: What their ratio is.
    """

    study: str
    case: str
    unit: str
    value: float
    compared: float
    meaning: str

    @property
    def ratio(self) -> float:
        """Value by compared."""
        return self.value / self.compared if self.compared else float("nan")
