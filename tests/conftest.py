import pytest

pytest.register_assert_rewrite("dialects.wire", "dialects.streams")
