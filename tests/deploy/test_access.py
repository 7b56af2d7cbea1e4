"""Who holds which certificate and which token: what would let one part pass for another is refused."""

from typing import Any

import pytest
from chart_values import GPU_DRAFT, TLS, values
from helm_charts import needs_tools, render
from refusals import assert_said, faults

pytestmark = needs_tools
LOOKUP: dict[str, Any] = {"name": "lookup", "kind": "lookup"}


def test_tls_needs_a_certificate_for_every_part() -> None:
    router, verifiers, drafts = faults(values(tls={"enabled": True}))
    assert verifiers.startswith("verifiers main: tls.secret: tls.enabled needs tls.verifierSecret, or a secret of this")
    assert drafts.startswith("drafts lookup: tls.secret: tls.enabled needs tls.draftSecret, or a secret of this pool")
    assert router.startswith("tls.routerSecret: tls.enabled needs it")


UNTRUSTED = {**GPU_DRAFT, "trust": "untrusted"}


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({}, "needs a certificate of its own, as with the drafts' it could pass for a trusted pool; name its secret"),
        ({"secret": "d"}, "d is the certificate of drafts lookup, drafts other too"),
        ({"secret": "v"}, "v is the certificate of verifiers main too"),
        ({"secret": "public"}, "public is the routers', with which this pool, which is not trusted, could call"),
        ({"secret": "mesh"}, "mesh is the routers', with which this pool, which is not trusted, could call"),
    ],
)
def test_a_pool_that_is_not_trusted_holds_nobody_elses_certificate(own: dict[str, Any], message: str) -> None:
    [line] = faults(values({**UNTRUSTED, "tls": own}, LOOKUP, {**LOOKUP, "name": "other"}, tls=TLS))
    assert line.startswith("drafts small: tls.secret: ")
    assert message in line


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("mesh-specmesh-router.ai.svc", "router"),
        ("mesh-specmesh-verifier.ai.svc", "verifiers main"),
        ("mesh-specmesh-draft-lookup.ai.svc", "drafts lookup"),
    ],
)
def test_a_pool_that_is_not_trusted_bears_nobody_elses_name(name: str, other: str) -> None:
    own = {"secret": "own", "serverName": name}
    [line] = faults(values({**UNTRUSTED, "tls": own}, LOOKUP, tls=TLS))
    assert line.startswith(f"drafts small: tls.serverName: is the name in the certificate of {other} too")


def test_a_certificate_of_its_own_or_a_word_lets_a_pool_pass() -> None:
    assert render(values({**UNTRUSTED, "tls": {"secret": "own"}}, LOOKUP, tls=TLS))
    assert render(values({**UNTRUSTED, "tls": {"shared": True}}, LOOKUP, tls=TLS))
    assert render(values(UNTRUSTED, LOOKUP))


def test_callers_are_known_apart_and_reach_what_there_is() -> None:
    callers = [
        {"name": "team", "pools": ["lookup", "x"]},
        {"name": "twin", "key": "team"},
        {"name": "team", "key": "other"},
        {"name": "job", "identities": ["job.example.com"]},
        {"name": "cron", "identities": ["job.example.com"]},
    ]
    said = faults(values(auth={"callers": callers}))
    expected = (
        "auth.callers team: pools names x, but there is no draft pool of that name; there are lookup",
        "auth.callers team: a token needs auth.existingSecret, a secret with the key team",
        "auth.callers twin: a token needs auth.existingSecret, a secret with the key team",
        "auth.callers team: a token needs auth.existingSecret, a secret with the key other",
        "auth.callers job: identities are those of certificates, for which nobody asks; set tls.clientCertificates",
        "auth.callers cron: identities are those of certificates",
        "auth.callers twin: another caller has the key team too",
        "auth.callers team: another caller has the name team too",
        "auth.callers cron: another caller has the identity job.example.com too",
        "test.tokenKey: `helm test` generates as one of auth.callers; name the key of one that may: team, team, other",
    )
    assert_said(said, expected)


@pytest.mark.parametrize(
    ("callers", "key", "message"),
    [
        (
            [{"name": "team"}],
            "",
            "test.tokenKey: `helm test` generates as one of auth.callers; name the key of one tha",
        ),
        ([{"name": "team"}], "tem", "test.tokenKey: no caller with the role client has the key tem; name one of team"),
        (
            [{"name": "ops", "roles": ["operator"]}],
            "ops",
            "test.tokenKey: no caller with the role client has the key o",
        ),
        (
            [],
            "team",
            "auth.callers: auth.existingSecret is set but no caller is named, so that everybody could do every",
        ),
    ],
)
def test_helm_test_shows_a_token_that_may_generate(callers: list[dict[str, Any]], key: str, message: str) -> None:
    said = faults(values(auth={"existingSecret": "t", "callers": callers}, test={"tokenKey": key}))
    assert [line for line in said if line.startswith(message)]


@pytest.mark.parametrize("holder", ["mesh", "public"])
@pytest.mark.parametrize("tls", [{"secret": "{}", "shared": True}, {"shared": True}])
def test_no_word_lets_a_pool_that_is_not_trusted_call_as_a_router(holder: str, tls: dict[str, Any]) -> None:
    own = {key: holder if key == "secret" else value for key, value in tls.items()}
    certificates = TLS if "secret" in own else {**TLS, "draftSecret": holder}
    said = faults(values({**UNTRUSTED, "tls": own}, LOOKUP, tls=certificates))
    assert (
        f"drafts small: tls.secret: {holder} is the routers', with which this pool, which is not trusted, could call"
        in said[0]
    )
