"""Memory through which the bytes of pieces pass. The credits keep the source from overtaking the reader."""

from .frames import WINDOW


class Ring:
    """One side of it: the memory, WINDOW bytes, and how far this side is. A piece does not go around its end."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self.position = 0

    def room(self) -> int:
        """Bytes up to the end of the memory."""
        return WINDOW - self.position

    def write(self, data: memoryview) -> None:
        """Copy a piece in."""
        self._memory[self.position : self.position + len(data)] = data
        self.position = (self.position + len(data)) % WINDOW

    def read(self, place: memoryview) -> None:
        """Copy a piece out."""
        place[:] = self._memory[self.position : self.position + len(place)]
        self.position = (self.position + len(place)) % WINDOW
