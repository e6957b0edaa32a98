"""The most memory that a program has taken, as a line for it to end with."""

PRINT_PEAK_KIB = "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
"""Not getrusage, whose peak begins with that of the process that started this one."""
