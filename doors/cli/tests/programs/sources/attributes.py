"""Reads and writes attributes according to a script on standard input, and compares the results.

    PATH = VALUE            the write succeeds with all bytes
    PATH = VALUE ! EINVAL   the write fails with this errno
    PATH ? TEXT             the file reads as this text, without the newline at its end
    PATH ? ! ENOENT         opening or reading fails with this errno
    PATH ~ EXPRESSION       the file's text matches this regular expression as a whole
    PATH -> TEXT            the symbolic link's text ends with this

D stands for /sys/bus/dsa/devices, R for /sys/bus/dsa/drivers. Empty lines and lines that begin with # are skipped.
Every difference is printed; the exit code is 1 if there was one.
"""

import errno
import os
import re
import sys

wrong = 0


def differs(number, line, found):
    global wrong
    wrong += 1
    print(f"line {number}: {line.strip()}\n    found: {found}", file=sys.stderr)


def name(error):
    # The number has two names; the driver's rules use this one.
    if error.errno == errno.EOPNOTSUPP:
        return "EOPNOTSUPP"
    return errno.errorcode.get(error.errno, str(error.errno))


def write(path, value):
    """Writes the value; returns the errno's name, or None."""
    try:
        # Also sets O_TRUNC and O_CREAT, as the shell's redirections do.
        with open(path, "w") as file:
            file.write(value)
    except OSError as error:
        return name(error)
    return None


def read(path):
    """Reads the file; returns its text and None, or None and the errno's name."""
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            return os.read(file, 4096).decode(), None
        finally:
            os.close(file)
    except OSError as error:
        return None, name(error)


for number, line in enumerate(sys.stdin, 1):
    words = line.split(None, 2)
    if not words or words[0].startswith("#"):
        continue
    path = re.sub(r"^D/", "/sys/bus/dsa/devices/", re.sub(r"^R/", "/sys/bus/dsa/drivers/", words[0]))
    verb, rest = words[1], words[2].rstrip("\n") if len(words) > 2 else ""
    if verb == "=":
        value, _, expected = rest.partition(" ! ")
        # A value in quotes may be empty, or begin or end with blanks.
        value = value.strip()
        if value[:1] == value[-1:] == '"' and len(value) > 1:
            value = value[1:-1].encode().decode("unicode_escape")
        found = write(path, value)
        if found != (expected.strip() or None):
            differs(number, line, found or "success")
    elif verb == "?" and rest.startswith("!"):
        text, found = read(path)
        if found != rest[1:].strip():
            differs(number, line, found or repr(text))
    elif verb in ("?", "~"):
        text, found = read(path)
        if text is None:
            differs(number, line, found)
        elif not text.endswith("\n"):
            differs(number, line, f"{text!r}, without a newline")
        elif verb == "?" and text[:-1] != rest.strip():
            differs(number, line, repr(text))
        elif verb == "~" and not re.fullmatch(rest.strip(), text[:-1]):
            differs(number, line, repr(text))
    elif verb == "->":
        try:
            text = os.readlink(path)
        except OSError as error:
            text = name(error)
        if not text.endswith(rest.strip()):
            differs(number, line, text)
    else:
        raise SystemExit(f"line {number}: no verb {verb}")

sys.exit(1 if wrong else 0)
