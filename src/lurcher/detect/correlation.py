"""What neighbouring points with something in common add to the variance of what is computed from them: AR(1) with lag-1 correlation phi."""

from __future__ import annotations


def inflation(length: int, phi: float) -> float:
    """Variance of a sum of `length` points of an AR(1) series over that of independent points with the same scatter.

    (1 + phi) / (1 - phi) - 2 phi (1 - phi^length) / (length (1 - phi)^2): 1 for one point, (1 + phi) / (1 - phi) for very many.
    """
    return (1.0 + phi) / (1.0 - phi) - 2.0 * phi * (1.0 - phi**length) / (length * (1.0 - phi) ** 2)
