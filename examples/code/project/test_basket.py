import unittest

from basket import cheapest, total


class Basket(unittest.TestCase):
    def test_a_discount_is_taken_off(self) -> None:
        assert total([1000, 500], 10) == 1350

    def test_an_empty_basket_costs_nothing(self) -> None:
        assert (total([]), cheapest([])) == (0, 0)

    def test_the_cheapest_is_the_lowest_price(self) -> None:
        assert cheapest([300, 120, 450]) == 120


if __name__ == "__main__":
    unittest.main()
