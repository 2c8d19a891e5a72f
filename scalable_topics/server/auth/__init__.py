"""Who asks, what they may do, and what is written down about it.

`tokens` says who, `table` and `authorizer` what they may, `forwarding` carries both from daemon to daemon, `audit`
writes down every change; `security` puts them together and `middleware` puts that in front of every route. Only the
last one knows HTTP.
"""
