"""Folders that are worked on locally and kept in a store (docs/adr/0028-folders-in-a-store.md)."""
