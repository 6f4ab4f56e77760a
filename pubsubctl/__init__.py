"""The command line: inventories, deployment, and a small file per verb."""
