"""Inventories of other tools, read as data: nothing they could run or fetch is run or fetched."""
