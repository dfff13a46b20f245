import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("dialects.wire", "dialects.streams")
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a machine may be
settings.load_profile("busy")
