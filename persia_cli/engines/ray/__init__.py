"""`cluster=ray`: machines of a Ray cluster. Ray finds them room and notices when they go; roles talk past it."""
