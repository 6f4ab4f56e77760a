"""Importers for inventories of other tools, read as data: nothing is run or fetched."""
