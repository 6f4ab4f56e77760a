"""Operations of a controller on a host before and beside the agent, locally or over SSH."""
