"""The release of this client; it travels as User-Agent."""

VERSION = "0.1.0"
