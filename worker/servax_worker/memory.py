"""How much memory of the device the loaded versions take, and how much they may."""

from collections.abc import Mapping

from servax_worker.errors import CannotServe


class MemoryBudget:
    """What is reserved of a device's memory; belongs to one event loop.

    A version is refused before the device runs out, while those that serve go on.
    """

    def __init__(self, limit: int | None):
        """At most `limit` bytes are given; any number where it is None."""
        self._limit = limit
        self._reserved: dict[Reservation, int] = {}

    @property
    def reserved(self) -> Mapping[str, int]:
        """The bytes that are reserved, by what for; added up where the name is the same."""
        by_name: dict[str, int] = {}
        for reservation, size in self._reserved.items():
            by_name[reservation.name] = by_name.get(reservation.name, 0) + size
        return by_name

    def reserve(self, name: str) -> "Reservation":
        """Begins a reservation of 0 bytes for what messages call `name`."""
        reservation = Reservation(self, name)
        self._reserved[reservation] = 0
        return reservation

    def _grow(self, reservation: "Reservation", size: int, what: str) -> None:
        left = None if self._limit is None else self._limit - sum(self._reserved.values())
        if left is not None and size > left:
            raise CannotServe(
                f"{what} of {reservation.name} take {_text(size)}, but of the {_text(self._limit)} "
                f"that the device has for models {_text(max(left, 0))} are left; "
                f"{self._described()}unload some, or raise --memory-limit"
            )
        self._reserved[reservation] += size

    def _described(self) -> str:
        taken = [f"{name} takes {_text(size)}" for name, size in self.reserved.items() if size]
        return "".join(f"{text}; " for text in taken)


class Reservation:
    """What one version takes, until it is released."""

    def __init__(self, budget: MemoryBudget, name: str):
        self.name = name
        self._budget = budget

    def grow(self, size: int, what: str) -> None:
        """Reserves `size` more bytes, for what messages call `what`.

        Raises CannotServe where they are not left; nothing is reserved then.
        """
        self._budget._grow(self, size, what)

    def release(self) -> None:
        """Gives all of it back."""
        self._budget._reserved.pop(self, None)


def _text(size: int | None) -> str:
    value = float(size or 0)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.3g} {unit}" if unit != "GB" else f"{value:,.1f} GB"
