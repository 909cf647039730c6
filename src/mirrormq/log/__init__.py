"""Logs and the disk port. Nothing here calls the file system: effects go into an outbox, results come back
as inputs.
"""
