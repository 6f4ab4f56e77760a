"""The verbs, one small file each, and `app`, which combines the verbs to a command."""
