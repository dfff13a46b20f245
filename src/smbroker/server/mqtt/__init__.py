"""MQTT in the broker: connections, sessions, retained messages, wills, shared subscriptions, $SYS.

connection   one TCP connection: packets in, what the standard says to each of them
session      what is remembered of a client: subscriptions, and messages on their way to it
replay       sessions that are fed from the log, by a cursor
service      all sessions: CONNECT, take-over, expiry, wills, shared subscriptions
retained     the last retained message of each topic
retaining    those that a new subscription begins with, a few at a time
keeping      what survives a restart
sys          $SYS/…
"""
