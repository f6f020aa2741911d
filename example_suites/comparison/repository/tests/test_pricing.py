import unittest

from pricing import total


class TestTotal(unittest.TestCase):
    def test_without_a_discount(self):
        assert total([10, 20]) == 30

    def test_with_a_discount_in_percent(self):
        assert total([10, 30], discount=25) == 30
