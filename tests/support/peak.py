"""The peak memory of a program, printed as its last line."""

PRINT_PEAK_KIB = "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
"""Not getrusage, whose peak includes that of the parent process before the start."""
