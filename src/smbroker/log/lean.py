"""pyarrow imports pandas, where it is installed, for its first array: a second or so that the broker does without."""

import sys


def without_pandas() -> None:
    """For a process of its own: from here on it has no pandas. Not for Spark's, which may need it."""
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
