"""The commands: one file each, loaded when asked for. Nothing here decides anything about a job."""
