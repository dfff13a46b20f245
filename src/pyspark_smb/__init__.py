"""Where Spark finds the format `smb`: it imports every module named `pyspark_*` and takes its `DefaultSource`."""

from smbroker.spark.source import SmbDataSource


class DefaultSource(SmbDataSource):
    pass
