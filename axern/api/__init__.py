"""The wire contract between the command line and the daemon; imports neither."""
