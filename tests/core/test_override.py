"""A second word about method or path is found however it is spelt, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from gateway.core.override import FIELDS, PARAMETERS, SPELLINGS, lookout, objection, parameters, second_field

FORM, JSON = "application/x-www-form-urlencoded", "application/json"
MULTIPART = "multipart/form-data; boundary=b"


def finds(kind: str, body: bytes) -> bool:
    """Look through a body, and see that it does not matter where the network cuts it."""
    found = set()
    for size in (len(body) or 1, 7, 1):
        looking = lookout(kind)
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        found.add(looking is not None and True in [looking.finds(piece) for piece in pieces])
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("name", [b"X-HTTP-Method-Override", b"x_http_method_override", b"X-Http_Method-OVERRIDE"])
def test_a_field_is_known_by_whatever_a_server_takes_for_its_name(name: bytes) -> None:
    """CGI's names do not tell `_` from `-`."""
    headers = ((b"Accept", b"*"), (name, b"DELETE"))
    assert name.lower() in SPELLINGS
    assert second_field(headers, ()) == name.decode()
    assert second_field(headers, {"x-http-method-override"}) is None
    assert second_field((*headers, (b"X-Original-URL", b"/x")), {"x-http-method-override"}) == "X-Original-URL"


def test_every_field_is_among_the_spellings_and_other_fields_are_not() -> None:
    assert {name.encode() for name in FIELDS} < SPELLINGS
    assert all(name == name.lower() for name in FIELDS | PARAMETERS)
    assert SPELLINGS.isdisjoint({b"x-request-id", b"x-forwarded-for", b"content-type", b"method"})
    assert second_field(((b"X-Method", b"x"),), ()) is None


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("_method=DELETE", ["_method"]),
        ("a=1&_method=put&b", ["_method"]),
        ("a=1;_METHOD=put", ["_METHOD"]),
        ("%5Fm%65thod=x", ["_method"]),
        ("%20+_method=x", ["_method"]),
        (".method=x", [".method"]),
        ("_method%00y=x", ["_method"]),
        ("_HttpMethod=PATCH&_method=PUT", ["_HttpMethod", "_method"]),
        ("_method", []),
        ("_method[]=x&my_method=y&_methods=z&method=w&a=_method", []),
        ("", []),
    ],
)
def test_a_parameter_is_known_by_whatever_a_server_takes_for_its_name(query: str, names: list[str]) -> None:
    assert parameters(query) == names


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FORM, b"_method=DELETE"),
        (FORM + "; charset=utf-8", b"a=1&%5fMETHOD=DELETE"),
        ("", b"a=1&_method=DELETE"),
        (JSON, b'{"a": 1, "_method": "PUT"}'),
        ("application/vnd.api+json", b'{"\\u005fmetho\\u0064":"PUT"}'),
        (MULTIPART, b'--b\r\nContent-Disposition: form-data; name="_method"\r\n\r\nPUT\r\n--b--'),
        (MULTIPART, b"--b\nX: y\ncontent-disposition:form-data; x=1;\n  name=_method\n\nPUT\n--b--"),
        (MULTIPART, b"--b\r\nContent-Disposition: form-data; name*=utf-8''%5Fmethod; a=b\r\n\r\nPUT\r\n--b--"),
    ],
)
def test_a_body_is_looked_through_for_it(kind: str, body: bytes) -> None:
    assert finds(kind, body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FORM, b"method=DELETE&x_method=1&_method&text=_method"),
        (JSON, b'{"method": "tools/call", "a_method": 1, "text": "the field \\"_method\\" of Rails"}'),
        (JSON, b""),
        ("text/plain", b"_method=DELETE"),
        (
            MULTIPART,
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="_method"\r\n\r\n'
            b'<input name="_method" value="delete">\r\n--b--',
        ),
    ],
)
def test_nothing_else_is_taken_for_it(kind: str, body: bytes) -> None:
    """A page with a form in it may be uploaded."""
    assert not finds(kind, body)


def test_a_name_far_behind_in_a_parts_head_is_found() -> None:
    assert finds(MULTIPART, b'\r\nContent-Disposition: form-data; x="' + b"y" * 7000 + b'"; name="_method"\r\n')


def test_the_objection_names_the_field_and_what_to_do() -> None:
    said = objection("the query parameter `_method`", "pay")
    assert said.startswith("the query parameter `_method` could have pay take the call for another operation")
    assert "leave it out" in said
    assert "`overrides`" in said
