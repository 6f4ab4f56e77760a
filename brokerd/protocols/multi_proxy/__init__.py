"""Topics that servers own, reached over any of several proxies."""
