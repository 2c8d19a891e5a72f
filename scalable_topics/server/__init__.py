"""The daemon as the network sees it."""
