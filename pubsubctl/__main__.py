"""`python -m pubsubctl`: the command, where its script is not on PATH."""

from pubsubctl.entry import main

if __name__ == "__main__":
    main()
