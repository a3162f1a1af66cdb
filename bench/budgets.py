"""What the service promises, as limits on measured figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """One limit.

    Attributes:
        figure: Path of the figure in the report, such as ``ratio.p50``.
        limit: The limit.
        is_upper: Whether the figure must not be above (else: not below) the limit.
    """

    figure: str
    limit: float
    is_upper: bool = True

    def holds(self, value: float) -> bool:
        """Whether the value keeps to the limit."""
        return value <= self.limit if self.is_upper else value >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.is_upper else '>='} {self.limit:,g}"


@dataclass(frozen=True)
class Verdict:
    """A budget beside the figure it limits.

    Attributes:
        value: What was measured.
        limit: What was promised.
        is_upper: Whether the limit is an upper one.
        held: Whether the value keeps to it.
    """

    value: float
    limit: float
    is_upper: bool
    held: bool


DISPATCH_BUDGETS = (
    Budget("ratio.p50", 1.2),
    Budget("ratio.p99", 1.4),
    Budget("ratio.throughput", 0.8, is_upper=False),
    Budget("in_process.10.p50_us", 40.0),
    Budget("in_process.100.p50_us", 70.0),
    Budget("in_process.1000.p50_us", 350.0),
    Budget("batch.decisions_per_second", 200_000.0, is_upper=False),
)
ENVOY_BUDGETS = (
    Budget("ratio.p50", 1.2),
    Budget("ratio.throughput", 0.8, is_upper=False),
)
EXTENDER_BUDGETS = (Budget("names_only.1000.p99_ms", 10.0),)
SCALING_BUDGETS = (
    Budget("containers.50.scale.p50_us", 1_000.0),
    Budget("containers.1000.scale.p50_us", 5_000.0),
)
ORCHESTRATION_BUDGETS = (
    Budget("sizes.100.p50_ms", 3.0),
    Budget("sizes.1000.p50_ms", 20.0),
    Budget("sizes.10000.p50_ms", 200.0),
    Budget("sizes.10000.resident_mib", 1024.0),
    # Linear but for what larger systems lose to caches.
    Budget("growth_exponent", 1.25),
)
BUDGETED_CANDIDATES = 10
"""Number of candidates the ratios' budgets are meant for."""


def judge(budgets: tuple[Budget, ...], document: Mapping[str, object]) -> dict[str, Verdict]:
    """Verdicts by figure, for those budgets whose figure the document holds."""
    verdicts = {}
    for budget in budgets:
        value: object = document
        for key in budget.figure.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, float):
            verdicts[budget.figure] = Verdict(value, budget.limit, budget.is_upper, budget.holds(value))
    return verdicts
