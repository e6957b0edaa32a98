"""The use of an exported model: a folder of mapped files, read without torch."""
