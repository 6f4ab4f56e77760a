"""[GES], its reliable half: storages that remember, and brokers that may fail for ever."""
