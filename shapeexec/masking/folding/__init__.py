"""Sums over examples, pushed to where an operation can sum over examples itself.

A gradient of shared parameters, vmapped and then summed, holds one gradient per example, and XLA
does not fold the sum into the operation that computes them. Here each sum is pushed toward its
source as long as that spares an array: through linear operations, into contractions, scatters and
loops. Vmapped jaxprs are known here; padding is not.
"""

# Each registers rules.
from shapeexec.masking.folding import _branches as _branches
from shapeexec.masking.folding import _contractions as _contractions
from shapeexec.masking.folding import _linear as _linear
from shapeexec.masking.folding import _loops as _loops
from shapeexec.masking.folding._notes import SumNote, notes_of_sums
from shapeexec.masking.folding._run import sum_over_examples

__all__ = ["SumNote", "notes_of_sums", "sum_over_examples"]
