"""`python -m pubsubctl`: the command, for a PATH without its script."""

from pubsubctl.entry import main

if __name__ == "__main__":
    main()
