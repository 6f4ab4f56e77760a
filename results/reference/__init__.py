"""The second opinion: the verdict on a small run once more, by code that shares no rule.

Written from the design's text alone, in plain Python, row by row. With the checker on Spark and the
one in the load generators it shares the nouns (`results.rules.terms`) and nothing that decides: it
draws the contents, reads the predicates and the clocks, finds what was at risk, judges what was
withheld and comes to its verdict itself. So a mistake on either side shows as a disagreement.
"""
