"""The verbs, one thin file each, and `app`, which makes one command of them."""
