"""A small client in plain blocking code, one module per dialect.

Each has `publish(address, topic, message)` and a `Subscriber`; and `encode_publish` and
`encode_subscribe`, with which one can find out beforehand what a dialect cannot say (Refused).
What goes wrong on the way to the broker and back is a ClientError.
"""
