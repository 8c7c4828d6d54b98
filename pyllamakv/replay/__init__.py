"""Multi-turn conversations on real models, stock beside patched, each against an oracle; and the models themselves.

A scenario (``scenarios/``) carries the symptom that a user would report. It runs in a process of its own (``child``),
makes the calls that a llama.cpp program makes (``engine``, ``talk``), and compares what it gets with a fresh context
(``oracle``). ``runner`` plays many, ``report`` shows them.
"""
