"""Helpers shared by the scripts: processes, disk images, mounts, reports."""
