"""What can go wrong, as values a command can turn into one line and an exit code."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_USER_ERROR = 2
EXIT_FAIL_SLOW = 3
EXIT_JOB_DIED = 4
EXIT_DIFFERS = 5
EXIT_INTERRUPTED = 130


class LurcherError(Exception):
    """Root of every error that lurcher raises on purpose."""

    exit_code = EXIT_USER_ERROR


class UserError(LurcherError):
    """Bad input: the message names the value, what is allowed and the next step."""


class JobDied(LurcherError):
    """The training job ended before its last iteration; the message says which rank and why."""

    exit_code = EXIT_JOB_DIED


class DeadlineExpired(JobDied):
    """A wait reached its deadline; the message names what was waited for."""
