"""Parts of ours measured by themselves, without brokers on a testbed."""
