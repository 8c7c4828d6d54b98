"""What a check can come to, and the exceptions by which a property says it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BAD", "ORDER", "NonFinite", "NotApplicable", "Refused", "Result", "Wrong", "worse"]

#: Outcomes from good to bad. ``error``: the check could not be made, which says nothing about the library.
ORDER = ("ok", "refused", "n/a", "wrong", "nan", "died", "error")

#: Outcomes that no memory may have.
BAD = frozenset({"wrong", "nan", "died", "error"})


class Refused(Exception):  # noqa: N818 - an outcome, not an error
    """A call returned false or an error, and what followed showed that nothing had changed. The text is the reason."""


class NotApplicable(Exception):  # noqa: N818
    """The property says nothing about this model at this setting. The text says why."""


class Wrong(Exception):  # noqa: N818
    """The equality does not hold."""


class NonFinite(Wrong):
    """The equality does not hold because of NaN or Inf."""


@dataclass(frozen=True)
class Result:
    """What came of one property on one model at one setting in one library.

    ``error`` is the largest normalised mean squared error that was measured (None where nothing was compared),
    ``detail`` the reason of a refusal, why a check does not apply, or what was seen first of a failure.
    """

    property: str
    model: str
    setting: str
    library: str
    outcome: str
    error: float | None = None
    detail: str = ""
    seconds: float = 0.0

    def key(self) -> tuple[str, str, str]:
        """What the same check is called in another run."""
        return (self.property, self.model, self.setting)


def worse(before: str, now: str) -> bool:
    """Whether ``now`` is worse than ``before``: a refusal of what was right is, and so is a check that went away."""
    if before == now:
        return False
    if now in BAD:
        return before not in BAD or ORDER.index(now) > ORDER.index(before)
    return before == "ok"
