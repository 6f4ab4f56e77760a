"""Generated histories: run folders of any size, correct or with planted mistakes."""
