"""The words that every other package speaks: topics, filters, messages, commands, errors.

Nothing here does I/O, asks a clock or imports another package of ours.
"""
