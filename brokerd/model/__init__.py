"""The vocabulary every other package speaks: identities, publications, predicates."""
