"""What can go wrong between a client and its broker.

SmbError
└── ClientError     code: unknown_host, nobody_listens, no_answer, mismatch, refused, closed, network
"""

from smbroker.model.errors import SmbError


class ClientError(SmbError):
    pass
