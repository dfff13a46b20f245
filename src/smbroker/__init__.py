"""SMB, the Simple Message Broker."""

__version__ = "0.1.0"
