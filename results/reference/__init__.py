"""The second opinion: another verdict on a run, by code without a common rule.

The code is written from the text of the design alone, in plain Python, row by row. The reference
shares the terms (`results.rules.terms`) with the checker on Spark and with the checker in the load
generators, and no code that decides. The reference draws the contents, reads the predicates and the
clocks, finds the deliveries at risk, judges withheld publications and reaches its verdict by
itself. So a mistake on either side shows as a disagreement.
"""
