"""Files on local disks and in object stores: paths of both, calls with deadlines, writing whole files."""
