"""HTTP: publish, history, streams, topics, figures, health. See docs/design/web.md.

Imports the model alone: what it needs of the broker it is handed as a `desk.Desk`.
"""
