"""Stands for all tests of this folder where there is no browser."""

import pytest

from page.conftest import MISSING


def test_there_is_a_browser() -> None:
    if MISSING:
        pytest.skip(MISSING)
