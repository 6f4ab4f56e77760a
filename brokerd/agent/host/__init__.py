"""What a controller asks on a host before and beside the agent, alone or over SSH."""
