"""MQTT in the broker: connections, sessions, retained messages, wills, shared subscriptions, $SYS.

connection      one TCP connection: how it is read, written and ended
handlers        which packets a client may send, and what takes each:
connecting      CONNECT → CONNACK
publishing      PUBLISH, and the acknowledgements that its client gets
acknowledging   what a client says to a message: PUBACK, PUBREC, PUBREL, PUBCOMP
subscribing     SUBSCRIBE, UNSUBSCRIBE

service         all sessions: who connects to which, take-over, expiry, their subscriptions
wills           what is published of a client that is gone
session         what is remembered of a client, and the messages on their way to it
items, frames   such a message, and its bytes
subscriptions   its subscriptions, and what they make of a topic
replay          sessions that are fed from the log, by a cursor
going_back      `smb-replay`: where the history of a subscription begins
shared          shared subscriptions
retained        the last retained message of each topic
retaining       those that a new subscription begins with, a few at a time
keeping         what survives a restart
sys             $SYS/…
"""
