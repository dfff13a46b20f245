"""The demo's simulated devices: a house and a small water works, speaking all dialects.

    weather ─► house ─┐                       thermostat ◄─ typed ──┐
               plant ─┴─► messages ─► broker ─┤                     ├─ what comes back
                 ▲                            controller ◄ semicolon┘
                 └── commands, also those that people publish

The simulations are pure: `values(now)` gives the messages that are due, `hear(topic, text)` takes
what the broker sent; same seed and same calls, same messages. `wires` alone has sockets, and
`__main__` is the process that `smb demo` starts: it ends when its standard input does.
"""
