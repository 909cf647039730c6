"""The resources, one file per kind: each lists its `ROUTES` as (verb, path below /api/, handler)."""
