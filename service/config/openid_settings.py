"""Settings of sign-in through an OpenID Connect provider."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator

from mainstay.service.config.setting_types import SettingsGroup, TextList


def _check_issuer(text: str) -> str:
    parts = urlsplit(text)
    is_local = parts.scheme == "http" and parts.hostname in {"127.0.0.1", "::1", "localhost"}
    if text and (not parts.hostname or parts.query or parts.fragment or not (parts.scheme == "https" or is_local)):
        raise ValueError("must be https://HOST… without a query (http only on this machine)")
    return text


class OpenIdSettings(SettingsGroup):
    """Sign-in through an OpenID Connect provider, such as Keycloak, Dex, Entra ID, Okta, or Google."""

    issuer: Annotated[str, AfterValidator(_check_issuer)] = ""
    """URL of the provider, below which /.well-known/openid-configuration lies. Empty: people sign in without one.
    Register DASHBOARD_URL/v1/auth/openid/callback there (notifications.dashboard_url)."""
    client_id: str = ""
    """ID of Mainstay at the provider."""
    client_secret_file: Path | None = None
    """File with the secret of Mainstay at the provider. Not set: a public client, protected by PKCE alone."""
    label: str = "single sign-on"
    """Name of the provider on the sign-in page."""
    scopes: TextList = ("openid", "profile", "email")
    """Scopes to ask for."""
    name_claim: str = "preferred_username"
    """Claim with the name of the user. Without it, Mainstay takes email, then sub."""
    groups_claim: str = "groups"
    """Claim with the groups of the user."""
    admin_groups: TextList = ()
    """Groups whose members are admins."""
    operator_groups: TextList = ()
    """Groups whose members are operators."""
    responder_groups: TextList = ()
    """Groups whose members are responders."""
    viewer_groups: TextList = ()
    """Groups whose members are viewers."""
    default_role: Literal["none", "viewer", "responder", "operator"] = "none"
    """Role in the fleet of users in none of these groups. With none, they see the jobs of their teams only."""
    team_role: Literal["viewer", "responder", "operator"] = "operator"
    """Role of users for the jobs of the teams whose groups they are in."""
    ca_file: Path | None = None
    """PEM file of authorities to trust for the provider, together with those of the system."""
