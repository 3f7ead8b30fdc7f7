"""Prices of a basket, in cents."""


def total(prices: list[int], discount_percent: int = 0) -> int:
    """What is to be paid. Half a cent is rounded up."""
    whole = sum(prices)
    return whole - whole * discount_percent // 100


def cheapest(prices: list[int]) -> int:
    """The lowest price; 0 if there is none."""
    lowest = 0
    for price in prices:
        if price < lowest:
            lowest = price
    return lowest
