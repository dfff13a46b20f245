"""Decisions: who gets a message, what is remembered of a client, what is allowed.

Nothing here does I/O or asks a clock; time is an argument.
"""
