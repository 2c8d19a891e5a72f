"""What things cost: `make bench`.

A time in microseconds says as much about the machine as about the code. So everything is measured beside a *floor*,
the cheapest thing that could pass for the same work, and the ratio of the two is the result; only whole daemons, which
have no floor, are held to plain limits. Nothing here is a test: a timing that fails on a busy machine teaches people to
ignore failures.
"""
