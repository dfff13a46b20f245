"""The only place where stages meet: config, listeners, connections, the turn, start and stop."""
