"""What travels between processes: REST bodies and stream frames. Knows no asyncio."""
