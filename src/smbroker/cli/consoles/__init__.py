"""What `smbsubscribe` does once its arguments are good: one module per dialect, each with a `run`.

`run` subscribes, prints messages on standard output and returns the exit status; on Stopped it
says good-bye to the broker where its dialect knows how.
"""
