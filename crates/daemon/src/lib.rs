//! The MobiFS daemon: serves a volume as a FUSE mount.
