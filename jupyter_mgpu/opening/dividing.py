"""Divides the engines of a pool among hosts."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """What one host can give.

    Attributes:
        room: How many engines, if nobody says how many there are to be.
        is_elastic: They need nothing that is scarce, so that there may be any number of them.
        has: How many of the pool it has already.
    """

    room: int
    is_elastic: bool = False
    has: int = 0


def divide(offers: Sequence[Offer], most: int | None) -> list[int]:
    """Choose how many engines each host gets.

    Those that come first give all that they have; then those that could have any number get so
    many that they have the same number each.

    Args:
        offers: What the hosts can give, in their order.
        most: How many engines are wanted; None for all that there are.
    """
    if most is None:
        return [offer.room for offer in offers]
    shares, left = [0] * len(offers), most
    for place, offer in enumerate(offers):
        if not offer.is_elastic:
            shares[place] = min(offer.room, left)
            left -= shares[place]
    elastic = [place for place, offer in enumerate(offers) if offer.is_elastic and offer.room]
    for _ in range(left if elastic else 0):
        shares[min(elastic, key=lambda place: offers[place].has + shares[place])] += 1
    return shares
