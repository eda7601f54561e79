"""A real OAuth 2 server for tests: Authlib on Flask, in a thread, with client credentials, token exchange and revocation."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, TokenMixin
from authlib.oauth2.rfc6749.errors import InvalidRequestError
from authlib.oauth2.rfc6749.grants import BaseGrant, ClientCredentialsGrant, TokenEndpointMixin
from authlib.oauth2.rfc7009 import RevocationEndpoint
from flask import Flask
from werkzeug.serving import make_server

__all__ = ["CLIENT_SECRET", "SUBJECT", "Issuer", "issuing"]

CLIENT_SECRET = "client+secret/kanarek"
SUBJECT = "subject-token-kanarek"
_METHODS = ["client_secret_basic", "client_secret_post"]


class _Client(ClientMixin):  # type: ignore[misc]
    def get_client_id(self) -> str:
        return "seawall"

    def get_allowed_scope(self, scope: str | None) -> str:
        return scope or ""

    def check_client_secret(self, client_secret: str) -> bool:
        return client_secret == CLIENT_SECRET

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method in _METHODS

    def check_grant_type(self, grant_type: str) -> bool:
        return True


class Token(TokenMixin):  # type: ignore[misc]
    def __init__(self, told: dict[str, Any], form: dict[str, str]) -> None:
        self.told, self.form = told, form
        self.is_revoked = False

    def check_client(self, client: ClientMixin) -> bool:
        return True


class Issuer:
    """What it has issued, by token."""

    def __init__(self) -> None:
        self.tokens: dict[str, Token] = {}
        self.asked = 0
        self.expires_in = 3600
        self.url = ""

    @property
    def good(self) -> set[str]:
        return {text for text, token in self.tokens.items() if not token.is_revoked}


def _app(issuer: Issuer) -> Flask:
    app = Flask("issuer")
    app.config["OAUTH2_TOKEN_EXPIRES_IN"] = {"client_credentials": 3600}

    def save(token: dict[str, Any], request: Any) -> None:
        issuer.tokens[token["access_token"]] = Token(token, dict(request.form))

    server = AuthorizationServer(
        app, query_client=lambda client_id: _Client() if client_id == "seawall" else None, save_token=save
    )

    def generate(**_: Any) -> dict[str, Any]:
        return {
            "token_type": "Bearer", "access_token": f"tok-{secrets.token_hex(8)}-kanarek", "expires_in": issuer.expires_in,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        }  # fmt: skip

    server.register_token_generator("default", generate)

    class Credentials(ClientCredentialsGrant):  # type: ignore[misc]
        TOKEN_ENDPOINT_AUTH_METHODS = _METHODS

    class Exchange(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]
        GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
        TOKEN_ENDPOINT_AUTH_METHODS = _METHODS

        def validate_token_request(self) -> None:
            self.request.client = self.authenticate_token_endpoint_client()
            if self.request.form.get("subject_token") != SUBJECT or not self.request.form.get("subject_token_type"):
                raise InvalidRequestError("no such subject")

        def create_token_response(self) -> Any:
            token = self.generate_token(grant_type=self.GRANT_TYPE)
            self.save_token(token)
            return 200, token, self.TOKEN_RESPONSE_HEADER

    class Revocation(RevocationEndpoint):  # type: ignore[misc]
        CLIENT_AUTH_METHODS = _METHODS

        def query_token(self, token_string: str, token_type_hint: str | None) -> Token | None:
            return issuer.tokens.get(token_string)

        def revoke_token(self, token: Token, request: Any) -> None:
            token.is_revoked = True

    server.register_grant(Credentials)
    server.register_grant(Exchange)
    server.register_endpoint(Revocation)

    @app.post("/token")
    def token() -> Any:
        issuer.asked += 1
        return server.create_token_response()

    @app.post("/revoke")
    def revoke() -> Any:
        return server.create_endpoint_response("revocation")

    return app


@contextmanager
def issuing() -> Iterator[Issuer]:
    """Run one on loopback."""
    import os

    os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # loopback without TLS
    issuer = Issuer()
    server = make_server("127.0.0.1", 0, _app(issuer), threaded=True)
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        os.environ.pop("AUTHLIB_INSECURE_TRANSPORT")
