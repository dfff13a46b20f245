"""Pipelines: one file each, SQL or Python; parsed, checked, run as streaming queries. See docs/design/pipelines.md.

files ─► Pipeline ─► frames (messages ─► the file's own DataFrame) ─► query (table, then topics) ─► runner
"""
