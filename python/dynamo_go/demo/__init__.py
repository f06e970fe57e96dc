"""The demo: ``python -m dynamo_go demo``.

Four mock engines run as processes of their own. The first requests of a public trace are replayed to them, at the
trace's arrival times, under three policies: KV routing (:class:`dynamo_go.Router`, default configuration), round robin
and random; with caches that keep everything, and with small ones. A table, a plot and a JSON file tell what came out.
"""

from .cli import main

__all__ = ["main"]
