"""Dynamo's names: code written for ``dynamo.llm`` and ``dynamo.runtime`` runs when it imports from here instead.

``from dynamo.llm import KvRouter`` becomes ``from dynamo_go.compat.llm import KvRouter``, and likewise for
``dynamo.runtime``, ``dynamo.llm.exceptions`` and ``dynamo.runtime.logging``. Signatures and what calls give are those of
Dynamo 1.6.1; ``docs/compat.md`` tells of each name whether it is the same, better, or not there. New code imports from
:mod:`dynamo_go`, whose classes these are or extend.
"""
