"""Pagefold's laboratory: real databases on real pools, crashed on purpose.

Everything a person types through `make` beyond the build itself lives here: the demo, the database tests, the soak
and the fill test. Standard library only; pytest runs the tests.
"""
