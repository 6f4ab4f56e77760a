"""The command line: inventories, deployment, and one thin file per verb."""
