"""Pure state machines of the job: events in, instructions out; no socket, thread or clock."""
