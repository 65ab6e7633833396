"""A status of HTTP in words, as RFC 9110 has them: Python's own differ from release to release."""

from http import HTTPStatus

OF_RFC_9110 = {
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "Content Too Large",
    HTTPStatus.REQUEST_URI_TOO_LONG: "URI Too Long",
    HTTPStatus.UNPROCESSABLE_ENTITY: "Unprocessable Content",
}


def phrase_of(status: int) -> str:
    """Raises ValueError for a status that HTTP does not know."""
    known = HTTPStatus(status)
    return OF_RFC_9110.get(known, known.phrase)
