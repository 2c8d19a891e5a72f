"""The port to the metadata store, and what stands directly on it: sessions, elections, the repository of records."""
