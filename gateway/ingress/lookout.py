"""Bodies are looked through for a second word about their method (`core/override.py`).

Those at hand are before anything is sent; those that stream are piece by piece, and break off before the piece that has it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from gateway.core.message import Body, BytesBody
from gateway.core.override import Lookout, finder, lookout
from gateway.core.routing import SAFE_METHODS
from gateway.core.tool import Operation
from gateway.ingress.request import IncomingRequest, UploadBroken

__all__ = ["Watched", "names_method", "overriding", "watched"]


class Watched:
    """A body that breaks off before the piece with which it could replace the method.

    Attributes:
        has_named: it has done so.
    """

    __slots__ = ("_body", "_lookout", "has_named")

    is_replayable = False

    def __init__(self, body: Body, lookout: Lookout) -> None:
        self._body = body
        self._lookout = lookout
        self.has_named = False

    @property
    def size(self) -> int | None:
        """As declared."""
        return self._body.size

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces.

        Raises:
            UploadBroken: the body could replace the method.
        """
        async for piece in self._body.chunks():
            if self._lookout.finds(piece):
                self.has_named = True
                raise UploadBroken("the request's body could replace its method")
            yield piece

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()


def watched(request: IncomingRequest, kind: str) -> Body | None:
    """Return the body of a read, to be read once, or None if it is seen already to replace the method.

    Servers look for parameters in the bodies of methods that are meant to have one.
    """
    found = None if request.method in SAFE_METHODS else lookout(kind)
    if found is None:
        return request.stream()
    data = request.in_one_piece()
    if data is None:
        return Watched(request.stream(), found)
    return None if found.finds(data) else request.stream()


def overriding(method: str, kind: str, operation: Operation) -> Callable[[bytes], bool] | None:
    """Return what says of a whole body of such calls whether it is to be refused, as `watched` and `names_method` would be
    asked; None where no body is."""
    is_free = "_method" in operation.overrides or (operation.is_read and method in SAFE_METHODS)
    return None if is_free else finder(kind)


async def names_method(kind: str, body: Body) -> bool:
    """Whether a replayable body could replace the method of its request."""
    found = lookout(kind)
    if found is None:
        return False
    if isinstance(body, BytesBody):
        return found.finds(body.data)
    async for piece in body.chunks():
        if found.finds(piece):
            return True
    return False
