"""A search for orders of memory operations that end in a wrong answer, a NaN or a death.

``machine`` draws operations with Hypothesis, ``player`` carries each out in a child that may die, ``world`` knows what
every sequence must be afterwards (``history``) and asks a fresh context (``reference``). ``hunt`` runs many examples on
many memories, ``emit`` writes what it found as a program, ``command`` is the command line's entry.
"""
