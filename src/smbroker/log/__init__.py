"""The durable order of messages: a tail, sealed segments, recovery, reading. See docs/design/log.md.

Plain blocking code without asyncio, so that Spark's workers, `smb log` and helper processes can
use it. `log.Log` is the broker's side, `reader.LogReader` everybody else's.
"""
