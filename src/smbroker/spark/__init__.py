"""The log in Spark: the data source `smb`, and the decoded view that pipelines start from. See docs/design/spark.md.

The only package that imports pyspark; the broker runs without it (`pip install 'smbroker[spark]'`).
"""

from smbroker.spark.decoded import decoded
from smbroker.spark.sink import publish_batch

__all__ = ["decoded", "publish_batch"]
