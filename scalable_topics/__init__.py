"""Scalable topics for the Pulsar you already run. `docs/architecture.md` draws the packages."""
