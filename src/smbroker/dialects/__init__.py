"""The wire languages: bytes to commands and messages to bytes, one module each.

No I/O, no clock, and no dialect imports another. What each offers to the broker:

    decode(datagram) -> Command     for datagrams; raises ProtocolError or Refused
    Decoder().feed(data)            for streams; then `next()` until it says None
    framer(topic) -> Framer         messages of that topic as bytes for a subscriber
    refusal(text) -> bytes          what a client is told when it is refused, where the wire knows such a thing

and what the other end needs, for clients: `encode_…` for requests, `decode_…` for what comes back.
"""
