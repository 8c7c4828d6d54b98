"""The scenarios, one module for each group. A scenario that stock passes is not in the set."""
