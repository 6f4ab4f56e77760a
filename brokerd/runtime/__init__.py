"""A broker as a process on trio: links, driver, disk, control socket."""
