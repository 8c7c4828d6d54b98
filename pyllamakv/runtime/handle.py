"""Ownership of C objects: freed once, in the right order, and a closed one explains itself."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Handle", "Owner"]


class Owner:
    """One C object. It is freed when the last reference goes, or at the end of the process, and then its ``parents``.

    A context keeps its model's owner, a view into the logits keeps the context's: nothing is freed under a user's feet,
    whatever is closed or collected first.
    """

    def __init__(self, pointer: Any, free: Callable[[Any], object], *parents: Owner) -> None:
        self.pointer = pointer
        self._finalizer = weakref.finalize(self, _free, free, pointer, parents)

    def free(self) -> None:
        """Free now (once; later calls do nothing)."""
        self._finalizer()


def _free(free: Callable[[Any], object], pointer: Any, parents: tuple[Owner, ...]) -> None:  # noqa: ARG001
    # ``parents`` is an argument so that they outlive this call.
    free(pointer)


class Handle:
    """Base of the objects that users close: a context manager whose methods raise ClosedError afterwards."""

    _owner: Owner | None = None

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._owner is None

    def close(self) -> None:
        """Give the C object back. Objects that still need it keep it alive until they are closed too."""
        self._owner = None

    def _use(self) -> Any:
        """The C pointer.

        Raises:
            ClosedError: it was closed.
        """
        owner = self._owner
        if owner is None:
            name = type(self).__name__
            raise ClosedError(f"this {name} was closed; use it before close(), inside its with block, or make another")
        return owner.pointer

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
