"""The types that all other packages use: identities, publications, predicates."""
