"""`cluster=ray`: machines of a Ray cluster. Ray places the roles and detects their end; their messages bypass it."""
