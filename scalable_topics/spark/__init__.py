"""The data pipeline: recorded load, replayed, judged."""
